"""Start, stop and supervise the operator's process."""
