"""Placeholder until the kind cluster is written."""
