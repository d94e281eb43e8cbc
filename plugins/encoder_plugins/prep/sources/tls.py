"""Trusts a company's own certificate authority, beside the public ones, in every client that prep uses."""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path

from encoder_plugins.errors import Unsupported

# where httpx (and so the hub's client) and botocore look
_VARIABLES = ("SSL_CERT_FILE", "AWS_CA_BUNDLE")


def also(certificates: Path) -> None:
    """Trust these certificates, too, in this process and in those that it starts.

    Raises:
        Unsupported: The file can't be read, or holds no certificate.
    """
    import certifi

    try:
        ssl.create_default_context(cafile=str(certificates))
        ours = certificates.read_bytes()
    except (OSError, ssl.SSLError) as error:
        raise Unsupported(f"{certificates} holds no certificates (PEM): {error}") from error
    with tempfile.NamedTemporaryFile(prefix="trusted-", suffix=".pem", delete=False) as bundle:
        bundle.write(Path(certifi.where()).read_bytes() + b"\n" + ours)
    os.environ.update(dict.fromkeys(_VARIABLES, bundle.name))
