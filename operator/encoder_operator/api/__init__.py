"""Versions of the encoders.dev API."""
