"""Refuse specs that the schema accepts but the operator cannot or may not act on."""
