"""An artifact without a server."""
