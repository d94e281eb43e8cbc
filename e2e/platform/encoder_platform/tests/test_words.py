"""The words of the project's prose and names: see BANNED in `words.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from encoder_platform import pages, words


def test_the_covered_files_use_the_vocabulary() -> None:
    files = words.covered()
    assert len(files) > 100
    assert [str(finding) for finding in words.findings(files)] == []


def phrases(folder: Path, name: str, text: str) -> list[tuple[int, str]]:
    file = folder / name
    file.write_text(text)
    return [(finding.line, finding.phrase) for finding in words.findings([file], folder)]


def test_python_is_read_in_its_comments_strings_and_names(tmp_path: Path) -> None:
    text = 'x = 1  # the census\nshown = f"""one\n{x} is told"""\ndef ask_all(): ...\nclass OpenDoor: ...\nlabel = "person"\n'
    found = phrases(tmp_path, "module.py", text)
    assert found == [(1, "census"), (3, "told"), (4, "ask"), (5, "door")]


def test_markdown_is_read_without_its_code(tmp_path: Path) -> None:
    text = "A *census*.\n\n```\nthe census\n```\n\nThe field `census`, [a page](census.md). Another CENSUS.\n"
    assert phrases(tmp_path, "page.md", text) == [(1, "census"), (7, "CENSUS")]


def test_other_files_are_read_line_by_line(tmp_path: Path) -> None:
    text = "description: >\n  It can't be had.\n"
    assert phrases(tmp_path, "crd.yaml", text) == [(2, "can't be had")]


@pytest.mark.parametrize(
    "text",
    ["certificate authority", "a task", "the personal", "unsaid", "doorbell", "a fewer number", "basks", "the outlook"],
)
def test_what_only_resembles_a_phrase_is_no_finding(tmp_path: Path, text: str) -> None:
    assert phrases(tmp_path, "page.md", text) == []


def test_a_finding_names_its_place_and_the_better_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "page.md").write_text("fine\nthe trunk\n")
    (tmp_path / "about.md").write_text("the trunk\n")
    monkeypatch.setattr(words, "COVERED", ("*.md",))
    monkeypatch.setattr(words, "EXEMPT", ("about.md",))
    assert words.covered(tmp_path) == [tmp_path / "page.md"]
    (finding,) = words.findings(words.covered(tmp_path), tmp_path)
    assert str(finding) == "page.md:2: 'trunk'; write: backbone"
    monkeypatch.setattr(words, "ALLOWED", {"page.md": ("trunk",)})
    assert words.findings([tmp_path / "page.md"], tmp_path) == []
    assert words.main([str(pages.ROOT / "README.md")]) == 0
    assert capsys.readouterr().out == ""


def test_a_pattern_that_covers_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "COVERED", ("no-such/*.md",))
    with pytest.raises(FileNotFoundError, match="no-such"):
        words.covered(tmp_path)
