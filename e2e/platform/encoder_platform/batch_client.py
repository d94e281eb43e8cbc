"""Runs inside the client pod: posts each body of a JSON list, from so many threads, and prints the answers in order.

usage: python3 - URL CLIENTS < bodies.json, as `python3 -c`  (stand-alone: standard library only)
"""

import json
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor


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
    """Read bodies from standard input, print answers."""
    with ThreadPoolExecutor(int(sys.argv[2])) as clients:
        json.dump(list(clients.map(post, json.load(sys.stdin))), sys.stdout)


if __name__ == "__main__":
    main()
