"""A user's file of cases, and the progress of prep and record."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins.artifact import cases as inputs
from encoder_plugins.cli.prepare import _auxiliary
from encoder_plugins.errors import ChecksumMismatch, SourceFileNotFound, Unsupported
from encoder_plugins.families.embedding import cases as embedding_cases
from encoder_plugins.families.embedding.config import EmbeddingConfig
from encoder_plugins.prep import progress
from encoder_plugins.prep.request import Auxiliary

MODEL = EmbeddingConfig(
    dimensions=4,
    normalize=True,
    max_tokens=256,
    max_positions=512,
    padding_token=None,
    lower_case=False,
    prompts={"query": "q: "},
    default_prompt=None,
)


def write(folder: Path, content: str) -> Path:
    path = folder / "inputs.json"
    path.write_text(content, encoding="utf-8")
    return path


def test_a_list_of_objects_is_read_and_held_against_its_hash(tmp_path: Path) -> None:
    content = '[{"text": "a"}, {}]'
    path = write(tmp_path, content)
    right = hashlib.sha256(content.encode()).hexdigest()
    assert inputs.read(path, right) == inputs.read(path) == ({"text": "a"}, {})
    with pytest.raises(ChecksumMismatch, match="changed"):
        inputs.read(path, "0" * 64)


@pytest.mark.parametrize("content", ["", "{}", "[1]", "[[]]", "null", '[{"threshold": NaN}]', "[" * 100_000])
def test_anything_else_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(Unsupported, match=r"inputs\.json"):
        inputs.read(write(tmp_path, content))


def test_too_much_is_refused_with_the_number(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=f"257 cases; the limit is {inputs.MOST_CASES}"):
        inputs.read(write(tmp_path, json.dumps([{}] * 257)))
    with pytest.raises(Unsupported, match=str(inputs.MOST_BYTES)):
        inputs.read(write(tmp_path, json.dumps([{"text": "a" * inputs.MOST_BYTES}])))
    with pytest.raises(SourceFileNotFound, match=r"missing\.json"):
        inputs.read(tmp_path / "missing.json")


def test_equal_cases_have_one_name_however_they_are_written() -> None:
    assert inputs.fingerprint([{"a": 1, "b": 2}]) == inputs.fingerprint([{"b": 2, "a": 1}])
    assert inputs.fingerprint([{"a": 1}]) != inputs.fingerprint([{"a": 2}])
    assert inputs.fingerprint([]) == ""


@pytest.mark.parametrize(
    ("case", "named"),
    [
        ({"text": 1}, "text"),
        ({}, "text"),
        ({"text": "a", "prompt_name": "passage"}, "passage"),
        ({"text": "a", "dimensions": 5}, "dimensions"),
        ({"text": "a", "normalize": "yes"}, "normalize"),
        ({"text": "a", "labels": []}, "labels"),
        ({"text": "a", "documents": ["b", ""]}, "one of documents"),
        ({"text": "a", "documents": ["b"], "prompt_name": "query"}, "prompt_name is there, too"),
        ({"text": "a", "id": "sentence"}, "sentence"),
        ({"text": "a", "id": ""}, "id"),
        ({"text": "a", "id": "x" * 65}, "id"),
    ],
)
def test_a_case_that_a_sentence_transformer_has_no_answer_to_is_refused(case: dict[str, Any], named: str) -> None:
    with pytest.raises(Unsupported, match=named):
        embedding_cases.user_cases([case], embedding_cases.cases(MODEL), MODEL)


def test_a_users_case_of_a_sentence_transformer_means_what_a_request_means() -> None:
    (plain, full, scored) = embedding_cases.user_cases(
        [
            {"text": "a"},
            {"text": "b", "prompt_name": "query", "dimensions": 2, "normalize": False, "id": "b"},
            {"text": "c", "documents": ["d"]},
        ],
        [],
        MODEL,
    )
    open_ = {"prompt_name": None, "dimensions": None, "normalize": None, "documents": None}
    assert plain == {"id": "user-0", "text": "a", **open_}
    assert full == {**open_, "id": "b", "text": "b", "prompt_name": "query", "dimensions": 2, "normalize": False}
    assert scored == {**open_, "id": "user-2", "text": "c", "documents": ["d"]}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("org/base@" + "a" * 40, Auxiliary("org/base", "a" * 40)),
        ("org/base", Auxiliary("org/base")),
        ("/mnt/a@b", Auxiliary("/mnt/a@b")),
    ],
)
def test_an_auxiliary_argument_is_a_pinned_repository_or_a_folder(text: str, found: Auxiliary) -> None:
    assert _auxiliary(text) == found


def test_on_a_terminal_progress_and_result_are_separate(capsys: pytest.CaptureFixture[str]) -> None:
    reported = progress.Progress(progress.to_terminal)
    reported.start("download", 3_000_000)
    reported.add(3_000_000)
    reported.note("slow")
    progress.to_terminal({"code": "Prepared", "message": "9 files", "digest": "sha256:1"})
    shown = capsys.readouterr()
    assert shown.out == "Prepared: 9 files\nsha256:1\n"
    assert shown.err.splitlines() == [
        "download  0.0 of 3.0 MB",
        "download  3.0 of 3.0 MB",
        "download  3.0 of 3.0 MB  slow",
    ]


def test_a_line_has_the_rate_and_counts_only_new_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("encoder_plugins.prep.progress.time.monotonic", lambda: now[0])
    lines: list[dict[str, object]] = []
    reported = progress.Progress(lines.append)
    reported.start("download", 10_000)
    # an earlier attempt downloaded these
    reported.skip(5_000)
    now[0] += 4
    reported.add(2_000)
    assert lines[-1] == {**lines[-1], "phase": "download", "bytes": 7_000, "total": 10_000, "bytesPerSecond": 500}
    now[0] += 2
    reported.add(3_000)
    assert (lines[-1]["bytes"], lines[-1]["bytesPerSecond"]) == (10_000, 1_500)
    assert datetime.fromisoformat(str(lines[-1]["at"])).tzinfo is not None
    assert "bytesPerSecond" not in lines[0] or lines[0]["bytesPerSecond"] == 0
    reported.start("seal")
    assert "bytesPerSecond" not in lines[-1]
