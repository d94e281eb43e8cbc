"""The operator: turns an EncoderModel into a verified, served encoder, and keeps it so.

Layers, top down; a module imports only from below:
``__main__`` and ``handlers`` (wiring), ``reconcile`` (one pass), ``cluster`` (the only one that talks to the API server),
``decide`` and what it composes (pure: ``preparation``, ``verification``, ``rollout``, ``status``),
``facts`` (what the API server returned, parsed once), ``revision`` and ``manifests`` (pure builders), ``api`` (the resource), ``errors``.
"""
