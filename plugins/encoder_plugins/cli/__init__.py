"""The commands of ``encoder-plugins``, one module each."""
