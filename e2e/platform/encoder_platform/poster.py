"""Runs inside the client pod: posts to one URL all the time, from several connections, until the stop file exists, and prints what failed.

Each request opens a connection of its own, as curl does: what is measured is whether the Service ever sends a client to a pod
that cannot answer. usage: python3 - URL STOP_FILE MAX_SECONDS CLIENTS < poster.py  (stand-alone: standard library only)
"""

import json
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

Outcome = dict[str, Any]


def post_until(url: str, stop: Path, deadline: float, outcome: Outcome) -> None:
    """Post until the file exists or the time is over; counts into `outcome`."""
    body = json.dumps({"data": {"text": "A man is eating a piece of bread."}}).encode()
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    while not stop.exists() and time.time() < deadline:
        started = time.time()
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                vector = json.load(answer)["data"]["embeddings"][0]
                failure = None if len(vector) > 1 else f"an empty vector: {vector}"
        except urllib.error.HTTPError as error:
            failure = f"{error.code} {error.read()[:200]!r}"
        except (OSError, ValueError, KeyError) as error:
            failure = repr(error)
        outcome["sent"] += 1
        if failure:
            outcome["failures"].append({"at": round(started, 3), "error": failure})
        time.sleep(0.02)


def main() -> None:
    """Start the clients, wait for them, print one line of JSON."""
    url, stop, seconds, clients = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    stop.unlink(missing_ok=True)
    outcomes: list[Outcome] = [{"sent": 0, "failures": []} for _ in range(clients)]
    threads = [threading.Thread(target=post_until, args=(url, stop, time.time() + seconds, o)) for o in outcomes]
    for thread in threads:
        thread.start()
    print("posting", flush=True)
    for thread in threads:
        thread.join()
    print(
        json.dumps({"sent": sum(o["sent"] for o in outcomes), "failures": [f for o in outcomes for f in o["failures"]]})
    )


if __name__ == "__main__":
    main()
