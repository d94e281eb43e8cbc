"""What pages use of curl: `python -m encoder_client.tests.posting URL -H 'NAME: VALUE' -d BODY`, and `-d @-` for the standard input."""

from __future__ import annotations

import argparse
import sys

import httpx

# longer than a tiny model on a busy machine takes
SECONDS = 120


def main() -> int:
    """Send the body, and print the answer; another one than 2xx is a failure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("-H", dest="header", required=True)
    parser.add_argument("-d", dest="data", required=True)
    given = parser.parse_args()
    name, _, value = given.header.partition(": ")
    body = sys.stdin.read() if given.data == "@-" else given.data
    answer = httpx.post(given.url, content=body.encode(), headers={name: value}, timeout=SECONDS, trust_env=False)
    print(answer.text)
    return 0 if answer.is_success else 1


if __name__ == "__main__":
    sys.exit(main())
