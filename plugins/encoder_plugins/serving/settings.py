"""What ``serve`` passes to its server processes beside vLLM's own arguments, in one environment variable.

Not in vLLM's ``--additional-config``: that is a part of the key under which vLLM caches compiled graphs, and a limit or the name
of a temporary file must not make it compile again.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

VARIABLE = "ENCODER_SERVING"
# 1 where the engine's process is forked from the server (``cpu_platform``)
FORKED = "ENCODER_FORKED_ENGINE"


class CountersFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where several server processes behind one port count together; see ``serving.http.worker_counters``."""

    path: str
    """The file that they share."""
    processes: int
    """How many processes there will be."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a server process must know."""

    plugin: str
    limits: dict[str, int]
    """The value of every limit of the plugin."""
    digest: str = ""
    """The artifact's digest."""
    adapters: dict[str, str] = {}
    """The folder of each LoRA adapter by name."""
    media_hosts: tuple[str, ...] = ()
    """The hosts from which requests may have images fetched."""
    counters: CountersFile | None = None
    """None where a single process serves."""

    def encode(self) -> str:
        """Return the value of the environment variable."""
        return msgspec.json.encode(self).decode()


def read(environment: Mapping[str, str]) -> Settings | None:
    """Return the settings in ``environment``; None where the process was not started by ``serve``.

    Raises:
        ValueError: The variable holds something else.
    """
    text = environment.get(VARIABLE)
    return None if text is None else msgspec.json.decode(text, type=Settings)
