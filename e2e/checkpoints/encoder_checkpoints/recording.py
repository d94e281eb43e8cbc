"""Record references in a library's process that stays, or take them from the cache.

Importing a library takes longer than recording a tiny checkpoint. Prep starts a process for each recording. Its own tests do so too; tests
that only need an artifact do not.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from encoder_checkpoints import answer_cache
from encoder_checkpoints.original import original
from encoder_plugins import errors
from encoder_plugins.artifact.reference import Case, Recording
from encoder_plugins.errors import PrepareError
from encoder_plugins.parameters import Value
from encoder_plugins.plugin import Plugin
from encoder_plugins.prep import recorder as exchange
from encoder_plugins.prep import reference_environment


def record(
    plugin: Plugin,
    checkpoint: Path,
    auxiliary: Mapping[str, Path],
    cases: Sequence[Case],
    *,
    trust_remote_code: bool = False,
    parameters: Mapping[str, Value] = MappingProxyType({}),
) -> Recording:
    """Do what ``reference_environment.record`` does, with the worker that ``original`` has for the library, or from the cache.

    Raises:
        PrepareError: The recorder refused the checkpoint.
        OriginalError: It failed.
    """
    with tempfile.TemporaryDirectory(prefix="encoder-record-") as temporary:
        folder = Path(temporary)
        exchange.write_request(
            folder,
            recorder=plugin.recorder,
            checkpoint=checkpoint,
            auxiliary=auxiliary,
            cases=cases,
            trust_remote_code=trust_remote_code,
            parameters=parameters,
        )
        given = (plugin.recorder, checkpoint, auxiliary, cases, trust_remote_code, parameters)
        for name, content in answer_cache.cached(
            plugin.reference_library, given, lambda: _record(plugin, folder)
        ).items():
            (folder / name).write_bytes(content)
        if (folder / exchange.REFUSED).is_file():
            refusal = json.loads((folder / exchange.REFUSED).read_text(encoding="utf-8"))
            refused: PrepareError = getattr(errors, refusal["class"])(refusal["message"])
            raise refused
        return exchange.read_recording(folder)


def _record(plugin: Plugin, folder: Path) -> dict[str, bytes]:
    """Run the recorder on the request in a folder, and return the files of the recording, or of the refusal, by name."""
    requested = set(folder.iterdir())
    original(plugin.reference_library).call(f"{reference_environment.WORKER}:main", folder)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path not in requested}


@contextmanager
def by_workers() -> Iterator[None]:
    """Let prep in this process record so while the block lasts."""
    before = reference_environment.record
    # mypy takes a function of a module for a constant
    reference_environment.record = record
    try:
        yield
    finally:
        reference_environment.record = before
