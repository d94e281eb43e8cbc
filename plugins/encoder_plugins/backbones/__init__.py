"""Encoders on vLLM's layers: a packed batch in, one row per token out; no padding, no copy to the host, no state."""
