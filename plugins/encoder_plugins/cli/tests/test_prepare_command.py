"""`encoder-plugins prepare`: exit statuses, the termination message, and what is never printed."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins.cli import prepare as prepare_command
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Request

Requested = Callable[..., Request]
Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path, hub: Any, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command as its Job does; returns exit status and termination message."""

    def command(source: str, *options: str, plugin: str = "sentence_transformer") -> tuple[int, dict[str, Any]]:
        log = tmp_path / "termination-log"
        parser = argparse.ArgumentParser()
        prepare_command.add_arguments(parser)
        output = str(tmp_path / "volume" / "key")
        arguments = [plugin, source, output, "--endpoint", hub.address, "--termination-log", str(log), *options]
        status = prepare_command.run(parser.parse_args(arguments))
        message = json.loads(log.read_text())
        printed = capsys.readouterr().out.splitlines()
        assert [json.loads(line) for line in printed][-1] == message
        return status, message

    return command


def test_a_finished_artifact_is_reported_in_full(run: Run, requested: Requested, progress: Progress) -> None:
    first = prepare(requested(), progress)
    status, message = run("demo/tiny")
    assert status == 0
    assert message == {
        "code": "Prepared", "message": f"{first.files} files, {first.bytes} bytes, 2 reference cases",
        "digest": first.digest, "reference": first.reference, "revision": first.revision,
        "bytes": first.bytes, "files": first.files, "cases": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("source", "options", "status", "code"),
    [
        ("gated/tiny", [], 22, "AuthFailed"),
        ("huge/tiny", [], 28, "InsufficientSpace"),
        ("demo/nothing", [], 44, "RepositoryNotFound"),
        ("demo/tiny", ["--revision", "0" * 40], 44, "RevisionNotFound"),
        ("/nowhere", [], 44, "FileNotFound"),
        ("corrupt/tiny", [], 65, "ChecksumMismatch"),
        ("a b", [], 69, "Unsupported"),
        ("limited/tiny", [], 75, "RateLimited"),
        ("stall/tiny", ["--stall-seconds", "1.5"], 75, "Stalled"),
    ],
)
def test_every_failure_has_its_status(run: Run, source: str, options: list[str], status: int, code: str) -> None:
    found, message = run(source, *options)
    assert (found, message["code"]) == (status, code)


@pytest.mark.parametrize(
    ("source", "options"), [("demo/nothing", []), ("/nowhere", []), ("demo/tiny", ["--revision", "0" * 40])]
)
def test_a_failure_before_the_first_byte_leaves_nothing(
    run: Run, source: str, options: list[str], tmp_path: Path
) -> None:
    assert run(source, *options)[0] == 44
    assert list((tmp_path / "volume").iterdir()) == []


@pytest.mark.parametrize("option", ["--token-file", "--ca-file"])
def test_an_optional_file_may_be_absent(run: Run, option: str) -> None:
    assert run("demo/nothing", option, "/nowhere", "--optional-files")[1]["code"] == "RepositoryNotFound"
    assert run("demo/nothing", option, "/nowhere")[1]["code"] in ("AuthFailed", "Unsupported")


@pytest.mark.parametrize("source", ["./local", "local", "../here/local", "."])
def test_a_relative_folder_is_a_folder_and_no_repository(
    run: Run, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "local").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here" / ("local" if source == "." else ""))
    status, message = run(source)
    assert (status, message["code"]) == (44, "FileNotFound")
    assert message["message"] == f"{tmp_path / 'here' / 'local'} is empty"
    assert set(message) == {"code", "message"}


def test_an_unknown_plugin_is_named(run: Run) -> None:
    status, message = run("demo/tiny", plugin="nonsense")
    assert status == 69
    assert "sentence_transformer" in message["message"]


@pytest.mark.parametrize("content", [b"", b"hf_secret and more", b"hf_secret\nhf_other", b"\xff", None])
def test_what_is_no_token_is_refused_and_never_shown(run: Run, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    status, message = run("gated/tiny", "--token-file", str(path))
    assert status == 22
    assert "secret" not in message["message"]


def test_a_failure_that_nobody_foresaw_is_one_line_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the library " + "says a lot " * 1000)

    monkeypatch.setattr("encoder_plugins.cli.prepare.prepare", fail)
    status, message = run("demo/tiny")
    assert (status, message["code"]) == (70, "PrepareFailed")
    assert len(json.dumps(message)) < 2048


def test_a_failing_volume_is_worth_another_try(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("encoder_plugins.cli.prepare.prepare", fail)
    assert run("demo/tiny") == (75, {"code": "Transient", "message": "[Errno 5] Input/output error"})


def test_finding_a_finished_artifact_loads_neither_client_nor_library(requested: Requested, progress: Progress) -> None:
    request = requested()
    prepare(request, progress)
    program = (
        "import argparse, sys; from encoder_plugins.cli import prepare as command; parser = argparse.ArgumentParser();"
        "command.add_arguments(parser); status = command.run(parser.parse_args()); print(*sys.modules); sys.exit(status)"
    )
    arguments = ["sentence_transformer", "demo/tiny", str(request.output)]
    finished = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert not {"torch", "vllm", "huggingface_hub", "sentence_transformers"} & set(
        finished.stdout.splitlines()[-1].split()
    )
