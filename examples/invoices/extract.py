"""Turn invoices into records: texts in, one line of JSON for each record out. Needs Python 3.11 and nothing else."""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

# texts of a request: the server's default limit is 256
BATCH = 32

STRUCTURES = {
    "invoice": [
        "number::str::the number of the invoice",
        "supplier::str::the company that wrote it",
        "customer::str",
        "date::str",
        "total::str::the amount to pay, with its currency",
        "kind::[invoice|credit note|reminder]::str",
    ]
}


def extract(url: str, texts: list[str]) -> list[dict[str, Any]]:
    """Return the server's result for each text."""
    data = {"texts": texts, "structures": STRUCTURES, "overflow": "chunk"}
    request = urllib.request.Request(
        f"{url}/pooling", json.dumps({"data": data}).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            results: list[dict[str, Any]] = json.load(response)["data"]["results"]
            return results
    except urllib.error.HTTPError as error:
        raise SystemExit(f"the server answered {error.code}: {error.read().decode()}") from None
    except (OSError, ValueError) as error:
        raise SystemExit(f"no answer from {url}: {error}") from None


def record(found: dict[str, Any], least: float) -> dict[str, Any]:
    """Return the values of a record, without those that have a score below ``least``."""
    return {name: value["text"] if value and value["score"] >= least else None for name, value in found.items()}


def main() -> None:
    """Send the files in batches, and print their records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of the server, for example http://localhost:8000")
    parser.add_argument("files", nargs="+", type=Path, help="text files, one invoice each")
    parser.add_argument("--least", type=float, default=0.5, help="values with a lower score are left out")
    given = parser.parse_args()
    for first in range(0, len(given.files), BATCH):
        files = given.files[first : first + BATCH]
        results = extract(given.url, [file.read_text(encoding="utf-8") for file in files])
        for file, result in zip(files, results, strict=True):
            for found in result["structures"]["invoice"]:
                json.dump({"file": file.name, **record(found, given.least)}, sys.stdout, ensure_ascii=False)
                print()


if __name__ == "__main__":
    main()
