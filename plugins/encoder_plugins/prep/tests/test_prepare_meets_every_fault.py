"""A fault at each single write of a prep, several preps at once, volumes of every size, and sources that can't be written."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins import errors
from encoder_plugins.artifact import manifest
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Request
from encoder_plugins.prep.tests import web_server
from encoder_plugins.prep.tests.meeting_faults import every_write

Requested = Callable[..., Request]

ONE_PREP = Path(__file__).with_name("dying_prep.py")


@pytest.mark.complaint(2)
@pytest.mark.fault(
    "the prep pod is killed before any single write of Python's (93 of them), or in the middle of every ninth",
    "`Preparing`",
    "nothing half-made is visible; the next try makes the same artifact and leaves nothing else",
)
@pytest.mark.parametrize(
    ("fault", "damaged"),
    [
        pytest.param("kill", False, marks=pytest.mark.soak, id="before"),
        pytest.param("torn", False, marks=pytest.mark.soak, id="within"),
        pytest.param("kill", True, id="instead-of-a-damaged-one"),
    ],
)
def test_a_prep_that_is_killed_at_any_write_does_no_harm(
    memory: Path, checkpoint: Path, fault: str, damaged: bool
) -> None:
    # what comes before half a write, or before a damaged one is replaced, was tried without
    step = 1 if (fault, damaged) == ("kill", False) else 9
    found = every_write(fault, str(checkpoint), memory, damaged=damaged, step=step)
    assert found["happened"] == {"killed": len(range(0, found["writes"], step))}
    assert found["calls"].keys() >= {"write", "rename", "replace", "mkdir", "fsync", "unlink"}
    assert found["calls"]["fsync"] >= 12


@pytest.mark.complaint(3)
@pytest.mark.fault(
    "the volume is full, or its quota used up, at any single write of a prep",
    "`InsufficientSpace`",
    "nothing half-made is visible, and what was staged is removed",
)
def test_a_volume_that_is_full_at_any_write_is_reported(memory: Path, checkpoint: Path) -> None:
    found = every_write("full", str(checkpoint), memory)
    # a folder that is there already needs no room, and neither does what is removed
    needing = sum(found["calls"].get(name, 0) for name in ("write", "fsync", "rename", "replace"))
    assert found["happened"]["full"] >= needing > 40


@pytest.mark.soak
@pytest.mark.parametrize("fault", ["kill", "full"])
def test_a_tar_meets_the_same(memory: Path, checkpoint: Path, tmp_path: Path, fault: str) -> None:
    (tmp_path / "www").mkdir()
    with tarfile.open(tmp_path / "www" / "tiny.tar.gz", "w:gz") as tar:
        tar.add(checkpoint, arcname="tiny")
    pinned = hashlib.sha256((tmp_path / "www" / "tiny.tar.gz").read_bytes()).hexdigest()
    with web_server.running(tmp_path / "www") as server:
        # every ninth: the rest is what a folder meets
        found = every_write(fault, f"{server.address}/tiny.tar.gz", memory, revision=pinned, step=9)
    # the unpacked files into the checkpoint, and those into the model folder
    assert found["calls"]["link"] == 18


@contextmanager
def mounted(kind: str, folder: Path, *options: str) -> Iterator[None]:
    """Mount something while the block lasts; that takes root, as the cluster of this project does."""
    subprocess.run(["mount", *options, kind, str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


needs_root = pytest.mark.skipif(os.getuid() != 0 or shutil.which("mount") is None, reason="mounting takes root")


@pytest.mark.complaint(3)
@needs_root
@pytest.mark.fault(
    "the volume is too small, by any number of blocks",
    "`InsufficientSpace`",
    "nothing half-made is visible, and what was staged is removed",
)
def test_volumes_of_every_size(
    requested: Requested, progress: Progress, tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the check before the download would refuse nearly all of them at once
    monkeypatch.setattr("encoder_plugins.prep.pipeline.require_space", lambda staging, needed: None)
    volume = tmp_path / "volume"
    volume.mkdir()
    request = requested(str(checkpoint))
    refused = 0
    with mounted("none", volume, "-t", "tmpfs", "-o", "size=4k"):
        for blocks in range(1, 100):
            subprocess.run(["mount", "-o", f"remount,size={4 * blocks}k", str(volume)], check=True)
            try:
                prepare(request, progress)
            except errors.InsufficientSpace:
                refused += 1
                assert not request.output.exists()
                assert not (volume / ".staging").exists()
            else:
                manifest.verify(request.output)
                break
        else:
            raise AssertionError("400 KiB are enough for it")
    assert refused > 10


@needs_root
@pytest.mark.fault("the source is mounted read-only", "`Preparing`", "it is only read")
def test_a_source_that_cannot_be_written_is_only_read(
    requested: Requested, progress: Progress, tmp_path: Path, checkpoint: Path
) -> None:
    with mounted(str(checkpoint), checkpoint, "--bind", "-o", "ro"):
        with pytest.raises(OSError, match="Read-only"):
            (checkpoint / "file").touch()
        prepare(requested(str(checkpoint)), progress)
    manifest.verify(requested(str(checkpoint)).output)


@needs_root
@pytest.mark.fault("the artifact's volume is mounted read-only", "`UnsupportedFilesystem`", "nothing is tried again")
def test_a_volume_that_is_read_only_is_reported(
    requested: Requested, progress: Progress, tmp_path: Path, checkpoint: Path
) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    with (
        mounted("none", volume, "-t", "tmpfs", "-o", "ro"),
        pytest.raises(errors.UnsupportedFilesystem, match="read-only"),
    ):
        prepare(requested(str(checkpoint)), progress)


@needs_root
def test_a_finished_artifact_is_found_on_a_volume_that_is_read_only(
    requested: Requested, progress: Progress, checkpoint: Path
) -> None:
    request = requested(str(checkpoint))
    first = prepare(request, progress)
    with mounted(str(request.output.parent), request.output.parent, "--bind", "-o", "ro"):
        assert prepare(request, progress) == first


@pytest.mark.complaint(7)
@pytest.mark.fault(
    "several prep Jobs of one artifact run at once, and one of them is killed",
    "`Preparing`",
    "one works and the others wait; all that live find the same artifact",
)
def test_of_several_preps_at_once_one_works_and_all_succeed(tmp_path: Path, hub: Any) -> None:
    output = tmp_path / "volume" / "key"

    def start(phase: str) -> subprocess.Popen[str]:
        arguments = ["demo/tiny", str(output), hub.address, hub.revision, phase]
        return subprocess.Popen([sys.executable, str(ONE_PREP), *arguments], stdout=subprocess.PIPE, text=True)

    before = hub.requests("demo/tiny").get("GET resolve demo/tiny", 0)
    running = [start(phase) for phase in ("seal", "never", "never", "never")]
    ended = [process.communicate(timeout=120)[0].strip() for process in running]
    digests = {digest for digest in ended if digest}
    assert len(digests) == 1
    assert manifest.verify(output).digest in digests
    assert [process.returncode for process in running][1:] == [0, 0, 0]
    # the killed process had fetched every file already
    assert hub.requests("demo/tiny")["GET resolve demo/tiny"] <= before + 9
    assert not (output.parent / ".staging").exists()
