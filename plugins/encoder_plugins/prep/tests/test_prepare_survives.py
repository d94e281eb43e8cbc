"""Whatever happens to a prep, nothing half-made is visible, and the next one finishes."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins import errors
from encoder_plugins.artifact import manifest
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Request

Requested = Callable[..., Request]
DYING = Path(__file__).with_name("dying_prep.py")


def dying(output: Path, hub: Any, phase: str, source: str = "demo/tiny") -> list[str]:
    return [sys.executable, str(DYING), source, str(output), hub.address, hub.revision, phase]


def visible(volume: Path) -> list[str]:
    return [path.name for path in volume.iterdir() if path.name != ".staging"]


@pytest.mark.complaint(2)
@pytest.mark.parametrize("phase", ["download", "publish", "clean"])
def test_a_killed_prep_leaves_nothing_visible_and_the_next_one_finishes(
    requested: Requested, progress: Progress, hub: Any, phase: str
) -> None:
    # each write of a folder's preparation is tried in test_prepare_meets_every_fault.py; these come from a hub
    request = requested()
    assert subprocess.run(dying(request.output, hub, phase), check=False).returncode == -signal.SIGKILL
    # after the rename, the artifact is there and whole; before it, nothing is
    assert visible(request.output.parent) == (["key"] if phase == "clean" else [])
    prepared = prepare(request, progress)
    assert manifest.verify(request.output).digest == prepared.digest
    assert not (request.output.parent / ".staging").exists()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"waited 60 s for {what}"
        time.sleep(0.01)


@contextmanager
def in_the_middle_of_a_file(command: list[str], volume: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a prep of a repository that stalls, up to where the large file has begun to arrive."""

    def arriving() -> bool:
        # files in the making are named by their hashes, and only large ones have a sha256
        partial = volume.glob(".staging/*/partial/*")
        return any(len(path.name) == 64 and path.stat().st_size > 1000 for path in partial)

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            wait_for(arriving, "the first bytes of the large file")
            yield process
        finally:
            process.kill()


def test_a_prep_that_is_killed_within_a_file_goes_on_from_its_bytes(
    tmp_path: Path, hub: Any, requested: Requested, lines: list[dict[str, Any]], progress: Progress
) -> None:
    request = requested()
    with in_the_middle_of_a_file(
        dying(request.output, hub, "never", "stall-kill/tiny"), request.output.parent
    ) as process:
        process.kill()
    before = hub.requests("demo/tiny").get("GET resolve demo/tiny", 0)
    prepare(request, progress)
    # everything else was complete: one request fetched the rest of the large file
    assert hub.requests("demo/tiny")["GET resolve demo/tiny"] == before + 1
    manifest.verify(request.output)


def test_an_interrupted_prep_reports_it_and_keeps_its_files(tmp_path: Path, hub: Any) -> None:
    volume, log = tmp_path / "volume", tmp_path / "termination-log"
    program = "import argparse,sys; from encoder_plugins.cli import prepare as c; p=argparse.ArgumentParser(); c.add_arguments(p); sys.exit(c.run(p.parse_args()))"
    command = [
        sys.executable,
        "-c",
        program,
        "sentence_transformer",
        "stall-term/tiny",
        str(volume / "key"),
        "--endpoint",
        hub.address,
    ]
    command += ["--revision", hub.revision, "--termination-log", str(log)]
    with in_the_middle_of_a_file(command, volume) as process:
        process.terminate()
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 75
    assert '"code": "Interrupted"' in output.splitlines()[-1]
    assert '"code": "Interrupted"' in log.read_text()
    assert visible(volume) == []
    assert list(volume.glob(".staging/*/partial/*"))


def test_of_two_writers_one_works_and_the_other_finds_it_done(requested: Requested, recorder: list[Path]) -> None:
    request = requested()
    second_waits = threading.Event()

    def first_emit(line: dict[str, object]) -> None:
        if line["phase"] == "seal":
            assert second_waits.wait(60)

    def second_emit(line: dict[str, object]) -> None:
        if line["phase"] == "waiting":
            second_waits.set()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(prepare, request, Progress(first_emit))
        wait_for(lambda: bool(recorder), "the first writer to record")
        second = pool.submit(prepare, request, Progress(second_emit))
        assert first.result(60) == second.result(60)
    assert len(recorder) == 1
    assert not (request.output.parent / ".staging").exists()


@pytest.mark.parametrize("damage", [lambda file: file.write_text("{}"), Path.unlink])
def test_a_damaged_artifact_is_replaced_by_a_sound_one(
    requested: Requested, progress: Progress, damage: Callable[[Path], object]
) -> None:
    request = requested()
    first = prepare(request, progress)
    damage(request.output / "model" / "config.json")
    assert prepare(request, progress) == first
    manifest.verify(request.output, first.digest)
    assert not (request.output.parent / ".staging").exists()


def test_what_is_no_artifact_is_never_removed(requested: Requested, progress: Progress) -> None:
    request = requested()
    request.output.mkdir(parents=True)
    (request.output / "thesis.tex").write_text("years of work")
    with pytest.raises(errors.ChecksumMismatch, match="left as it is"):
        prepare(request, progress)
    assert (request.output / "thesis.tex").read_text() == "years of work"


def test_another_artifact_is_never_replaced(requested: Requested, progress: Progress, hub: Any) -> None:
    request = requested()
    prepare(request, progress)
    with pytest.raises(errors.Unsupported, match="another artifact"):
        prepare(requested(revision=hub.second_revision), progress)
    manifest.verify(request.output)


def test_an_empty_folder_is_filled(requested: Requested, progress: Progress) -> None:
    request = requested()
    request.output.mkdir(parents=True)
    assert prepare(request, progress).files


@contextmanager
def small_files_only() -> Iterator[None]:
    """Let this process write no file above 4 KiB, as on a volume that is full: pytest's own report included, so not for long."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("source", ["demo/tiny", "folder"])
def test_a_volume_that_fills_up_is_cleaned(requested: Requested, progress: Progress, models: Path, source: str) -> None:
    request = requested(str(models / "demo" / "tiny") if source == "folder" else source)
    with pytest.raises(errors.InsufficientSpace), small_files_only():
        prepare(request, progress)
    assert not request.output.exists()
    assert not (request.output.parent / ".staging").exists()


@pytest.fixture
def full_volume(tmp_path: Path) -> Iterator[Path]:
    """A volume of 16 KiB."""
    volume = tmp_path / "volume"
    volume.mkdir()
    mount = shutil.which("mount")
    if os.getuid() != 0 or mount is None:
        pytest.skip("mounting a small volume takes root")
    if subprocess.run([mount, "-t", "tmpfs", "-o", "size=16k", "none", str(volume)], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield volume
    subprocess.run(["umount", str(volume)], check=True)


def test_a_checkpoint_that_cannot_fit_is_refused_before_its_download(
    full_volume: Path, requested: Requested, progress: Progress, hub: Any
) -> None:
    with pytest.raises(errors.InsufficientSpace, match="are free"):
        prepare(requested(), progress)
    assert not (full_volume / ".staging").exists()


def test_a_full_disk_is_distinguished_from_other_failures(
    full_volume: Path, requested: Requested, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("encoder_plugins.prep.pipeline.require_space", lambda staging, needed: None)
    with pytest.raises(errors.InsufficientSpace, match="full"):
        prepare(requested(), progress)
    assert not (full_volume / ".staging").exists()


def test_a_volume_that_this_user_may_not_write_is_named(
    requested: Requested, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    # root may write anywhere, so the refusal is made here
    monkeypatch.setattr("encoder_plugins.artifact.staging.os.open", refuse)
    with pytest.raises(errors.UnsupportedFilesystem, match="fsGroup"):
        prepare(requested(), progress)
