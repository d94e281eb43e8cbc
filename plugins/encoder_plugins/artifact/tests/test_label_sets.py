"""Label sets as users write them: what is read, and what is refused by its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from encoder_plugins.artifact import label_sets
from encoder_plugins.artifact.label_sets import Label
from encoder_plugins.errors import SourceFileNotFound, Unsupported

EXPECTED = [Label("Q1", "company"), Label("Straße 東京", "Straße 東京"), Label("Q3", "a\u2028b\tc")]
ENTRIES = [{"id": "Q1", "label": "company"}, "Straße 東京", {"label": "a\u2028b\tc", "id": "Q3"}]
LINES = "\n".join(json.dumps(entry, ensure_ascii=False) for entry in ENTRIES)


@pytest.mark.parametrize(
    "content",
    [LINES, f"{LINES}\n", LINES.replace("\n", "\r\n"), json.dumps(ENTRIES), f"\n {json.dumps(ENTRIES, indent=1)}\n"],
)
def test_every_form_becomes_the_same_file(content: str, tmp_path: Path) -> None:
    (source := tmp_path / "source").write_text(content, encoding="utf-8", newline="")
    target = tmp_path / "set.jsonl"
    assert label_sets.write(label_sets.parse(source, "set"), target) == 3
    assert target.read_bytes() == '["Q1","company"]\n["Straße 東京","Straße 東京"]\n["Q3","a\u2028b\\tc"]\n'.encode()
    assert list(label_sets.read(target)) == EXPECTED
    assert label_sets.files(tmp_path) == {"set": target}
    assert label_sets.files(tmp_path / "none") == label_sets.files(None) == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('"a"\n"b"\n"a"', "line 3: the label 'a' is that of line 1, too"),
        ('["a", "b", "a"]', "entry 3: the label 'a' is that of entry 1, too"),
        ('{"label": "a", "id": "1"}\n{"label": "b", "id": "1"}', "line 2: the id '1' is that of line 1, too"),
        ('"a"\n{"label": "b", "id": "a"}', "line 2: the id 'a' is that of line 1, too"),
        ('"a"\n""', "line 2: the label is blank"),
        ('"a"\n" \\u00a0"', "line 2: the label is blank"),
        ('{"label": "a", "id": ""}', "line 1: the id is blank"),
        ('"a"\n\n"b"', "line 2 is empty"),
        ('"a"\nNaN', "line 2 is not valid JSON: NaN"),
        ('[{"label": NaN}]', "is not valid JSON: NaN"),
        ('{"label": 1.5}', "line 1: the label is not a text: 1.5"),
        ('{"label": "a", "id": 7}', "line 1: the id is not a text: 7"),
        ('{"label": "a", "id": null}', "line 1: the id is not a text: null"),
        ('{"id": "a"}', "line 1 is neither a text nor an object with a label"),
        ('"a"\n["b"]', "line 2 is neither a text nor an object with a label"),
        ('{"label": "a", "text": "b"}', "line 1 has 'text'; there is: label, id"),
        ('"a"\n{"id": "1", "label": "b", "label": "c"}', "line 2 is not valid JSON: the key 'label' is there twice"),
        ('[{"id": "1", "label": "a", "id": "2"}]', "is not valid JSON: the key 'id' is there twice"),
        (json.dumps("x" * 257), "line 1: the label has 257 characters; the limit is 256"),
        (json.dumps({"label": "a", "id": "x" * 257}), "line 1: the id has 257 characters; the limit is 256"),
        ('"\\ud800"', "line 1: the label is not valid Unicode"),
        (b'"a"\n"\xff"', "line 2 is not valid JSON"),
        ('"a', "line 1 is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", "has no labels"),
        ("", "has no labels"),
        ("\n", "line 1 is empty"),
    ],
)
def test_what_is_no_label_is_refused_by_its_line(content: str | bytes, message: str, tmp_path: Path) -> None:
    (source := tmp_path / "source").write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(Unsupported) as caught:
        list(label_sets.parse(source, "mine"))
    assert str(caught.value).startswith("label set mine")
    assert message in str(caught.value)


def test_more_than_a_set_may_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source := tmp_path / "source").write_text('"a"\n"b"\n"c"')
    monkeypatch.setattr(label_sets, "MOST_LABELS", 2)
    with pytest.raises(Unsupported, match="line 3: the limit is 2 labels"):
        list(label_sets.parse(source, "mine"))
    monkeypatch.setattr(label_sets, "MOST_BYTES", 10)
    with pytest.raises(Unsupported, match="11 bytes; the limit is 10"):
        list(label_sets.parse(source, "mine"))
    with pytest.raises(SourceFileNotFound, match="cannot read"):
        list(label_sets.parse(tmp_path / "none", "mine"))


def test_what_just_keeps_the_limits_is_a_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = ["x" * 256, "y" * 256]
    (source := tmp_path / "source").write_text(json.dumps(longest))
    monkeypatch.setattr(label_sets, "MOST_LABELS", 2)
    monkeypatch.setattr(label_sets, "MOST_BYTES", source.stat().st_size)
    assert [label.text for label in label_sets.parse(source, "mine")] == longest


def test_a_folder_and_a_missing_file_are_named_as_such(tmp_path: Path) -> None:
    for path, message in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file")):
        with pytest.raises(SourceFileNotFound, match=f"label set kinds: cannot read .*: {message}"):
            label_sets.check_file(path, "kinds")


def test_the_published_limits_are_those_that_hold(tmp_path: Path) -> None:
    # as the plugin's page has them: 16 sets, a million labels and 256 MiB each
    assert (label_sets.MOST_SETS, label_sets.MOST_LABELS) == (16, 1_000_000)
    with (tmp_path / "source").open("wb") as sparse:
        sparse.truncate((256 << 20) + 1)
    with pytest.raises(Unsupported, match="268435457 bytes; the limit is 268435456"):
        next(label_sets.parse(tmp_path / "source", "mine"))


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a.b", "a/b", "a" * 64, "a\n", "é"])
def test_a_name_is_that_of_a_kubernetes_object(name: str) -> None:
    label_sets.check_name("my-set-1")
    with pytest.raises(Unsupported, match="a name is 1 to 63"):
        label_sets.check_name(name)
