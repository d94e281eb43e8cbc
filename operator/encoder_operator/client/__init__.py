"""Talk to the API server."""
