"""The folder that `encoder-plugins new` writes. docs/adding-a-plugin.md is followed, and its tests run, by e2e/platform."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from encoder_plugins import models
from encoder_plugins.__main__ import main
from encoder_plugins.cli import new

ROOT = Path(__file__).parents[4]
SUMMARY = "Text vectors."
OPTIONS = ["--library", "transformers", "--summary", SUMMARY, "--example-model", "example/model"]


@pytest.mark.parametrize("name", ["a", "two_words", "n" * new.LONGEST_NAME])
def test_the_files_are_formatted_and_linted_whatever_the_name(name: str) -> None:
    files = new.render(name, "l" * new.LONGEST_NAME, SUMMARY, "example/model")
    for path, content in files.items():
        if path.endswith(".py"):
            place = f"plugins/encoder_plugins/models/{name}/{path}"
            assert ruff("format", place, content) == content
            ruff("check", place, content)


def ruff(command: str, path: str, content: str) -> str:
    """Run a command of ruff on what would be the content of ``path``; return what it prints."""
    # ruff looks for the files of first-party modules, and these do not exist
    ours = "lint.isort.known-first-party=['encoder_plugins']"
    line = [sys.executable, "-m", "ruff", command, "--no-cache", "--config", ours, "--stdin-filename", path, "-"]
    done = subprocess.run(line, cwd=ROOT, input=content, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_template_is_used() -> None:
    templates = {path.stem for path in (Path(new.__file__).parent / "scaffold").iterdir()}
    assert templates == set(new.FILES.values())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["Name", *OPTIONS], "NAME 'Name': use lower-case"),
        (["class", *OPTIONS], "NAME 'class'"),
        (["../up", *OPTIONS], "NAME '../up'"),
        (["n" * (new.LONGEST_NAME + 1), *OPTIONS], "at most 30"),
        (["deberta_gliner", *OPTIONS], "there is a plugin of this name"),
        (["one", *OPTIONS, "--library", "../up"], "--library '../up'"),
        (["one", *OPTIONS, "--summary", "No full stop"], "write one sentence"),
        (["one", *OPTIONS, "--summary", 'A "quoted" word.'], "write one sentence"),
        (["one", *OPTIONS, "--example-model", ""], "name a repository"),
    ],
)
def test_a_value_that_cannot_be_is_refused_and_nothing_is_written(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "__path__", [str(tmp_path), *models.__path__])
    assert main(["new", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "__path__", [str(tmp_path)])
    (tmp_path / "one").mkdir()
    assert main(["new", "one", *OPTIONS]) == 2
    assert "exists already" in capsys.readouterr().err
    assert list((tmp_path / "one").iterdir()) == []
