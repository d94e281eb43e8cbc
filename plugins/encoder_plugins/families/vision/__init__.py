"""Retrieval over images: what retrievers of one row per token or patch share, beside what text retrievers have."""
