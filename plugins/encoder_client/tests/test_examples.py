"""What the scripts of ``examples/`` print where there is no server, or no file. With a server, the tests of the plugins run them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


def printed(script: str, *arguments: str) -> str:
    """Return what a script writes to standard error, which has to be one line."""
    command = [sys.executable]
    if "/// script" in (EXAMPLES / script).read_text(encoding="utf-8"):
        command = ["uv", "run", "--quiet", "--frozen", "--script"]
    environment = {**os.environ, "VIRTUAL_ENV": ""}
    done = subprocess.run(
        [*command, str(EXAMPLES / script), *arguments], env=environment, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address whose port no server listens on."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture
def catalogue(tmp_path: Path) -> list[str]:
    """A catalogue of one name, and a sentence with it."""
    (tmp_path / "catalogue.jsonl").write_text('{"id": "1", "label": "Apple: a fruit"}\n', encoding="utf-8")
    (tmp_path / "sentences.txt").write_text("An Apple a day.\n", encoding="utf-8")
    return [str(tmp_path / "catalogue.jsonl"), str(tmp_path / "sentences.txt")]


def test_without_a_server_the_address_is_named(nobody: str, catalogue: list[str]) -> None:
    for script, arguments in (
        ("search/search.py", ["q"]),
        ("pages/search.py", ["q"]),
        ("invoices/extract.py", [str(EXAMPLES / "invoices" / "acme.txt")]),
        ("catalogue/link.py", [nobody, *catalogue]),
    ):
        assert printed(script, nobody, *arguments).startswith(f"no answer from {nobody}"), script


def test_a_pdf_that_cannot_be_read_is_named(nobody: str, tmp_path: Path) -> None:
    (tmp_path / "text.pdf").write_text("no PDF")
    for name in ("text.pdf", "missing.pdf"):
        file = str(tmp_path / name)
        assert printed("pages/search.py", nobody, "q", file).startswith(f"{file} cannot be read: ")
