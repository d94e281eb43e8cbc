"""Pages are typed into one shell, and what goes wrong there is reported with what was printed."""

import os
import time
from pathlib import Path

import pytest

from encoder_platform.pages import ROOT
from encoder_platform.terminal import Block, Terminal, blocks

ENVIRONMENT = {"PATH": os.environ["PATH"]}


def test_blocks_have_their_files_and_sections() -> None:
    page = "# A\n\nSave this as `a.py`:\n\n```python\nx = 1\n```\n\n## B\n\n```sh\nrun\n```\n\n```\nnothing\n```\n"
    assert list(blocks(page)) == [
        Block(language="python", content="x = 1\n", file="a.py", section="A"),
        Block(language="sh", content="run\n", file=None, section="B"),
    ]


def test_a_block_sees_what_those_before_it_did(tmp_path: Path) -> None:
    with Terminal(tmp_path, ENVIRONMENT) as terminal:
        assert terminal.run("NAME=value\nsleep 60 &\n", seconds=10) == ""
        # cat has no input to read
        assert terminal.run('cat; echo "$NAME"; kill %1; pwd >&2', seconds=10) == f"value\n{tmp_path}\n"


def test_a_command_that_fails_ends_the_page_with_what_it_printed(tmp_path: Path) -> None:
    with Terminal(tmp_path, ENVIRONMENT) as terminal, pytest.raises(AssertionError, match=r"(?s)false.*before"):
        terminal.run("echo before\nfalse\necho after", seconds=10)


def test_a_failure_is_known_at_once_where_a_job_goes_on(tmp_path: Path) -> None:
    began = time.monotonic()
    with Terminal(tmp_path, ENVIRONMENT) as terminal, pytest.raises(AssertionError, match="before"):
        terminal.run("sleep 60 &\necho before\nfalse", seconds=50)
    assert time.monotonic() - began < 40


def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    began = time.monotonic()
    with Terminal(tmp_path, ENVIRONMENT) as terminal, pytest.raises(AssertionError, match="longer than 1 s"):
        terminal.run("exec sleep 60", seconds=1)
    assert time.monotonic() - began < 20


def test_the_first_page_names_the_version_of_this_checkout() -> None:
    import tomllib

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    page = (ROOT / "docs" / "get-started.md").read_text()
    assert f"--version {version} " in page
    assert f"encoder_operator-{version}-py3" in page
    # the README has a part of it
    readme = list(blocks((ROOT / "README.md").read_text()))
    (model,) = (block.content for block in readme if block.language == "yaml")
    assert model in [block.content for block in blocks(page)]
    assert f"oci://REGISTRY/charts/encoder-operator --version {version} " in (ROOT / "README.md").read_text()
