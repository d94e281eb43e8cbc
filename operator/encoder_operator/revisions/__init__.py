"""Identify artifacts and revisions by hashes."""
