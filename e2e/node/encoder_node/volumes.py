"""Making used volumes new: nothing provisions volumes here, so what claims have left behind is used again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from encoder_node.api_server import ApiServer


class Runner(Protocol):
    """What runs a command on the node."""

    def __call__(self, command: Sequence[str]) -> str:
        """Runs the command and returns its output."""


def released(volumes: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    """Returns those of the named volumes whose claim has been deleted."""
    found = {volume["metadata"]["name"] for volume in volumes if volume.get("status", {}).get("phase") == "Released"}
    return [name for name in names if name in found]


def recycle(api: ApiServer, run: Runner, folder: Path, names: Sequence[str]) -> list[str]:
    """Empties released volumes and lets new claims have them; returns their names.

    No pod can still use one: a claim goes only after its last pod.
    """
    listing = api.get("/api/v1/persistentvolumes")
    done = released(listing["items"] if listing is not None else [], names)
    for name in done:
        run(["find", str(folder / name), "-mindepth", "1", "-delete"])
        run(["chmod", "0777", str(folder / name)])
        api.merge(f"/api/v1/persistentvolumes/{name}", {"spec": {"claimRef": None}})
    return done
