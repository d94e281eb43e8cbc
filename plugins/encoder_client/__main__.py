"""The command ``encoder-client``."""

from __future__ import annotations

import sys

from encoder_client.commands import main

if __name__ == "__main__":
    sys.exit(main())
