"""Builders of Kubernetes objects: values in, one manifest out. No I/O, no clock, no defaults of the API server.

A manifest never holds a field that says what the API server would default to, nor an empty one: server-side apply owns exactly
what is written here, and ``ownership`` compares exactly that.
"""
