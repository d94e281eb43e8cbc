"""A prepared model folder: its manifest, its reference, and how it is written."""
