"""A hub's token and an object store's keys: in no output, message, argument, environment or file, whatever happens."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins.prep.tests import web_server

# as long and as odd as real ones, so that nothing else looks like them
TOKEN = "hf_test_token"
WRONG = "hf_kX9wQzTokenThatIsNotAccepted"
KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIAKX9WQZACCESS",
    "AWS_SECRET_ACCESS_KEY": "kX9wQz/SecretAccessKey+ofNobody",
    "AWS_SESSION_TOKEN": "kX9wQzSessionTokenOfNobody==",
}

HONEST, CARELESS = "dying_prep:record", "careless_recorder:record"

# the command as its Job runs it, with a recorder that needs no torch
PROGRAM = """
import argparse, sys
sys.path.insert(0, sys.argv.pop(1))
from encoder_plugins.plugin import resolve
from encoder_plugins.prep import reference_environment
from encoder_plugins.prep.sources import retry
from encoder_plugins.cli import prepare
reference_environment.record = resolve(sys.argv.pop(1))
retry.time.sleep = lambda seconds: None
parser = argparse.ArgumentParser()
prepare.add_arguments(parser)
sys.exit(prepare.run(parser.parse_args()))
"""


@pytest.fixture
def run_prep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, bytes]]:
    """Run a prep and return its exit status, and all of its output."""
    # clients that log everything
    for name, value in {"HF_DEBUG": "1", "HF_HUB_VERBOSITY": "debug", "HTTPX_LOG_LEVEL": "trace"}.items():
        monkeypatch.setenv(name, value)

    def run(source: str, *options: str, recorder: str = HONEST) -> tuple[int, bytes]:
        volume, log = tmp_path / "volume", tmp_path / "termination-log"
        arguments = ["sentence_transformer", source, str(volume / "key"), *options, "--termination-log", str(log)]
        command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), recorder, *arguments]
        seen: set[bytes] = set()
        output = tmp_path / "output"
        with (
            output.open("wb") as stream,
            subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT) as process,
        ):
            while process.poll() is None:
                for member in family(process.pid):
                    for kind in ("cmdline", "environ"):
                        with suppress(FileNotFoundError, ProcessLookupError):
                            seen.add(Path(f"/proc/{member}/{kind}").read_bytes())
                time.sleep(0.01)
        assert json.loads(log.read_text())["message"]
        files = [path.read_bytes() for path in volume.rglob("*") if path.is_file()]
        names = [str(path).encode() for path in volume.rglob("*")]
        return process.returncode, b"\n".join([output.read_bytes(), log.read_bytes(), *seen, *files, *names])

    return run


def family(pid: int) -> Iterator[int]:
    """A process and all that it has started, as `ps` lists them."""
    yield pid
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from family(int(child))


def file_of(folder: Path, text: str) -> str:
    path = folder / "token"
    path.write_text(text)
    return str(path)


def test_the_output_of_child_processes_is_inspected_too(
    run_prep: Callable[..., tuple[int, bytes]], checkpoint: Path
) -> None:
    found, everything = run_prep(str(checkpoint), recorder=CARELESS)
    assert found == 0, everything[-2000:]
    assert b"kX9wQzArgument" in everything
    assert b"kX9wQzVariable" in everything


@pytest.mark.parametrize(
    ("repository", "token", "status"),
    [
        ("gated/tiny", TOKEN, 0),
        ("gated/tiny", WRONG, 22),
        ("demo/nothing", WRONG, 44),
        ("down/tiny", WRONG, 75),
        ("corrupt/tiny", WRONG, 65),
    ],
    # pytest puts a test's name into the environment
    ids=["accepted", "refused", "missing", "down", "corrupt"],
)
def test_a_token_is_logged_nowhere(
    run_prep: Callable[..., tuple[int, bytes]], tmp_path: Path, hub: Any, repository: str, token: str, status: int
) -> None:
    found, everything = run_prep(repository, "--endpoint", hub.address, "--token-file", file_of(tmp_path, token))
    assert found == status, everything[-2000:]
    assert token.encode() not in everything


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ((403, {}), 22),
        # which the client follows again and again
        ((301, {"Location": "http://127.0.0.1:9/elsewhere"}), 69),
    ],
)
def test_keys_are_logged_nowhere(
    run_prep: Callable[..., tuple[int, bytes]], tmp_path: Path, answer: Any, status: int
) -> None:
    for name, value in KEYS.items():
        (tmp_path / "credentials").mkdir(exist_ok=True)
        (tmp_path / "credentials" / name).write_text(value + "\n")
    (tmp_path / "www").mkdir()
    with web_server.running(tmp_path / "www") as server:
        server.always = answer
        options = ["--endpoint", server.address, "--credentials-folder", str(tmp_path / "credentials")]
        found, everything = run_prep("s3://models/tiny", *options)
        # they were used: the session's token is the one thing that is sent
        assert server.requests
    assert found == status, everything[-2000:]
    assert b"kX9wQz" not in everything
    assert KEYS["AWS_ACCESS_KEY_ID"].encode() not in everything


@pytest.mark.parametrize("missing", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_a_folder_without_a_key_is_named_and_its_other_key_is_not(
    run_prep: Callable[..., tuple[int, bytes]], tmp_path: Path, missing: str
) -> None:
    for name, value in KEYS.items():
        if name != missing:
            (tmp_path / name).write_text(value)
    found, everything = run_prep("s3://models/tiny", "--credentials-folder", str(tmp_path))
    assert found == 22
    assert missing.encode() in everything
    assert b"kX9wQz" not in everything
