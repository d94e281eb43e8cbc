"""Run `python -m encoder_operator`, which is the same as `encoder-operator`."""

from __future__ import annotations

import sys

from encoder_operator.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
