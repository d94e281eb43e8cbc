"""The engine's entry point starts nothing on an artifact of which one byte differs from what was prepared."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins import __main__
from encoder_plugins.artifact import manifest as artifact
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Request

Requested = Callable[..., Request]


def cut(path: Path) -> None:
    """As a copy that was interrupted leaves it."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def reseal(folder: Path) -> None:
    """Write the manifest that would fit: only the digest in the pod's arguments differs."""
    before = artifact.read(folder)
    manifest = artifact.build(
        folder,
        key=before.key,
        plugin=before.plugin,
        prep_version=before.prep_version,
        licence_note=None,
        source=before.source,
    )
    (folder / artifact.MANIFEST).write_bytes(manifest.encode())


@pytest.mark.fault(
    "a file of the artifact is truncated, changed or removed after it was prepared, or the manifest rewritten to fit",
    "`CrashLoop`",
    "the container ends with status 65 before an engine starts; pods that serve go on",
)
def test_every_file_is_checked_before_an_engine_starts(
    requested: Requested,
    progress: Progress,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    started: list[Any] = []

    def start(*arguments: Any) -> None:
        started.append(arguments)
        # the real one never comes back either
        raise SystemExit

    monkeypatch.setattr(os, "execve", start)
    monkeypatch.setattr("encoder_plugins.serving.command.check_servable", lambda *_: None)
    # no engine computes this tiny checkpoint, whose heads are 4 wide
    monkeypatch.setattr("encoder_plugins.backbones.config_checks.supported_head_sizes", lambda _: None)
    request = requested(str(checkpoint))
    digest = prepare(request, progress).digest
    folder = request.output
    command = ["serve", str(folder), "--digest", digest, "--api-servers", "1", "--engines", "1", "--name", "m"]
    with pytest.raises(SystemExit):
        __main__.main(command)
    assert len(started) == 1
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) == 13
    for path in files:
        content = path.read_bytes()
        for change in (cut, flip, Path.unlink):
            change(path)
            assert __main__.main(command) == 65, (path, change)
            assert "ChecksumMismatch" in capsys.readouterr().err
            path.write_bytes(content)
    vocabulary = folder / "model" / "vocab.txt"
    flip(vocabulary)
    reseal(folder)
    assert __main__.main(command) == 65
    assert digest in capsys.readouterr().err
    assert len(started) == 1
