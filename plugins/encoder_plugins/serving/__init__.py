"""From an artifact to a running engine behind a port."""
