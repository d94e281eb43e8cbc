"""An artifact without a server."""

from encoder_plugins.offline.client import Answer, Model

__all__ = ["Answer", "Model"]
