"""Artifacts that nobody keeps are removed from a volume, and nothing else is, whatever preps do meanwhile."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins import __main__
from encoder_plugins.artifact import manifest
from encoder_plugins.cli import garbage_collect
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Request

Requested = Callable[..., Request]
WANTED, GONE, STAGED, NEW = (f"{number:064x}" for number in (1, 2, 3, 4))
LONG_AGO = 1_000_000_000.0


@pytest.fixture
def volume(requested: Requested, progress: Progress, checkpoint: Path) -> Path:
    """Two artifacts and what a failed prep left of a third, all of long ago, beside things that are not ours."""
    first = requested(str(checkpoint))
    volume = first.output.parent
    for key in (WANTED, GONE):
        prepare(replace(first, output=volume / key), progress)
    (volume / ".staging" / STAGED / "partial").mkdir(parents=True)
    (volume / ".staging" / STAGED / "partial" / "file").write_bytes(b"some bytes")
    (volume / "thesis").mkdir()
    (volume / "thesis" / "thesis.tex").write_text("years of work")
    (volume / ("f" * 64)).mkdir()
    (volume / ("f" * 64) / "notes.txt").write_text("named like a key, and nothing of ours")
    age(volume)
    return volume


def age(volume: Path) -> None:
    for path in volume.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))


def test_what_nobody_keeps_goes_and_all_else_stays(volume: Path) -> None:
    size = sum(path.stat().st_size for path in (volume / GONE).rglob("*") if path.is_file())
    found = garbage_collect.collect(volume, {WANTED}, time.time())
    assert (found.removed, found.kept, found.recent, found.locked) == ([GONE, STAGED], [WANTED], [], [])
    assert found.bytes == size + len(b"some bytes")
    assert sorted(os.listdir(volume)) == sorted([WANTED, "thesis", "f" * 64])
    manifest.verify(volume / WANTED)


def test_a_dry_run_removes_nothing(volume: Path) -> None:
    before = sorted(volume.rglob("*"))
    assert garbage_collect.collect(volume, {WANTED}, time.time(), dry_run=True).removed == [GONE, STAGED]
    assert sorted(volume.rglob("*")) == before


def test_what_a_prep_has_found_since_the_list_was_made_stays(
    volume: Path, requested: Requested, progress: Progress, checkpoint: Path
) -> None:
    listed_at = time.time() - 5
    # a model that came after the list: its prep finds the artifact, and does nothing more
    prepare(replace(requested(str(checkpoint)), output=volume / GONE), progress)
    found = garbage_collect.collect(volume, {WANTED}, listed_at)
    assert found.recent == [GONE]
    manifest.verify(volume / GONE)


def test_what_a_prep_works_on_stays(
    volume: Path, requested: Requested, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealing, go_on = threading.Event(), threading.Event()

    def emit(line: dict[str, object]) -> None:
        if line["phase"] == "seal":
            sealing.set()
            assert go_on.wait(60)

    request = replace(requested(str(checkpoint)), output=volume / NEW)
    working = threading.Thread(target=prepare, args=(request, Progress(emit)))
    working.start()
    assert sealing.wait(60)
    # even if its files looked old
    monkeypatch.setattr(garbage_collect, "_is_old", lambda staging, before: True)
    found = garbage_collect.collect(volume, {WANTED, GONE}, time.time())
    go_on.set()
    working.join()
    assert found.locked == [request.output.name]
    manifest.verify(request.output)


def test_a_prep_that_comes_between_the_look_and_the_lock_keeps_its_artifact(
    volume: Path, requested: Requested, progress: Progress, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # far from now: a file system's clock may be some milliseconds behind
    before = time.time() - 50
    for path in (volume / GONE).rglob("*"):
        os.utime(path, (before - 50, before - 50))
    looks: list[bool] = []
    look = garbage_collect._is_old

    def looked(staging: Any, moment: float) -> bool:
        old = look(staging, moment)
        if staging.output.name == GONE and not looks:
            looks.append(old)
            prepare(replace(requested(str(checkpoint)), output=volume / GONE), progress)
        return old

    monkeypatch.setattr(garbage_collect, "_is_old", looked)
    found = garbage_collect.collect(volume, {WANTED}, before)
    assert looks == [True]
    assert found.recent == [GONE]
    manifest.verify(volume / GONE)


def test_a_prep_that_comes_after_the_removal_makes_it_anew(
    volume: Path, requested: Requested, progress: Progress, checkpoint: Path, recorder: list[Path]
) -> None:
    digest = manifest.read(volume / GONE).digest
    garbage_collect.collect(volume, {WANTED}, time.time())
    recorder.clear()
    assert prepare(replace(requested(str(checkpoint)), output=volume / GONE), progress).digest == digest
    assert len(recorder) == 1


def test_an_artifact_that_goes_while_it_is_verified_is_made_anew(
    volume: Path, requested: Requested, progress: Progress, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = manifest.verify
    removed: list[Path] = []

    def verified(folder: Path, expected: str | None = None) -> manifest.Manifest:
        if not removed:
            removed.append(folder)
            (folder / manifest.MODEL / "config.json").unlink()
        return verify(folder, expected)

    monkeypatch.setattr("encoder_plugins.prep.pipeline.artifact.verify", verified)
    prepare(replace(requested(str(checkpoint)), output=volume / GONE), progress)
    verify(volume / GONE)


def test_what_is_damaged_or_of_a_later_version_is_left_alone(volume: Path) -> None:
    (volume / GONE / manifest.MANIFEST).write_text("{}")
    os.utime(volume / GONE / manifest.MANIFEST, (LONG_AGO, LONG_AGO))
    assert garbage_collect.collect(volume, {WANTED}, time.time()).removed == [STAGED]
    assert (volume / GONE).is_dir()


def test_a_link_is_never_followed(volume: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (volume / GONE).rename(tmp_path / "elsewhere" / GONE)
    (volume / GONE).symlink_to(tmp_path / "elsewhere" / GONE)
    garbage_collect.collect(volume, set(), time.time())
    manifest.verify(tmp_path / "elsewhere" / GONE)


def test_the_command_says_what_it_did(volume: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    now = datetime.now(UTC)
    arguments = [
        "collect",
        str(volume),
        "--keep",
        WANTED,
        "--listed-at",
        now.isoformat(),
        "--termination-log",
        str(log),
    ]
    assert __main__.main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads(log.read_text())
    assert report["code"] == "Collected"
    assert report["removed"] == [GONE, STAGED]
    assert "2 artifacts removed" in report["message"]


def test_an_hour_before_the_list_is_too_recent(volume: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half_an_hour_ago = time.time() - 1800
    os.utime(volume / GONE / manifest.MANIFEST, (half_an_hour_ago, half_an_hour_ago))
    assert __main__.main(["collect", str(volume), "--listed-at", datetime.now(UTC).isoformat()]) == 0
    assert json.loads(capsys.readouterr().out)["recent"] == [GONE]


@pytest.mark.parametrize("listed_at", ["yesterday", "2026-11-22T10:00:00", ""])
def test_a_time_that_is_none_is_refused(volume: Path, listed_at: str) -> None:
    assert __main__.main(["collect", str(volume), "--listed-at", listed_at]) == 2
    assert (volume / GONE).is_dir()


@pytest.mark.parametrize(
    "wrong",
    [
        *(("--keep", key) for key in (WANTED[:12], "A" * 64, f"/artifacts/{WANTED}", f"{WANTED}\n", "")),
        ("--grace-seconds", "-3600"),
        ("--grace-seconds", "nan"),
    ],
)
def test_a_key_or_a_time_that_protects_nothing_is_refused(
    volume: Path, wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    listed_at = datetime.now(UTC).isoformat()
    assert __main__.main(["collect", str(volume), "--listed-at", listed_at, "=".join(wrong)]) == 2
    assert capsys.readouterr().err.startswith(wrong[0])
    assert (volume / WANTED).is_dir()


def test_a_clock_that_is_ahead_does_not_make_everything_old(volume: Path) -> None:
    tomorrow = time.time() + timedelta(days=1).total_seconds()
    (volume / GONE / manifest.MANIFEST).touch()
    os.utime(volume / GONE / manifest.MANIFEST, (time.time() + 60, time.time() + 60))
    assert garbage_collect.collect(volume, {WANTED}, tomorrow).recent == [GONE]
