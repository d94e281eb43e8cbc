"""Releases: images and chart in a registry, with what is in them, where they come from, and signatures."""
