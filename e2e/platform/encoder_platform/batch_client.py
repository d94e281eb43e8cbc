"""Runs inside the client pod: posts each body of a JSON list, from so many threads, and writes the answers to a file, in order.

usage: python3 - URL CLIENTS FILE < bodies.json, as `python3 -c`  (stand-alone: standard library only)
"""

import json
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def post(body: object) -> dict[str, object]:
    """Post one body; returns {"status", "body"}."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(sys.argv[1], data=json.dumps(body).encode(), headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return {"status": answer.status, "body": json.load(answer)}
    except urllib.error.HTTPError as error:
        return {"status": error.code, "body": error.read().decode("utf-8", "replace")}


def main() -> None:
    """Read bodies from standard input, write answers."""
    with ThreadPoolExecutor(int(sys.argv[2])) as clients:
        answers = list(clients.map(post, json.load(sys.stdin)))
    Path(sys.argv[3]).write_text(json.dumps(answers), encoding="utf-8")


if __name__ == "__main__":
    main()
