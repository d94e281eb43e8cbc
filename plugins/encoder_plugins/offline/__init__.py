"""An artifact without a server."""

from encoder_plugins.offline.client import Model

__all__ = ["Model"]
