"""Builders of Kubernetes objects: values in, one manifest out. No I/O, no clock.

A manifest contains neither empty fields nor fields that repeat a default of the API server. Server-side apply owns
exactly the fields of the manifest, and `client.apply_diff` compares exactly those.
"""
