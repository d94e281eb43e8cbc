"""What the library answers, recorded anew into an artifact of a GLiNER checkpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins import catalog
from encoder_plugins.artifact import manifest
from encoder_plugins.cli.record import record
from encoder_plugins.errors import ChecksumMismatch, PrepareError, Unsupported
from encoder_plugins.prep.pipeline import Prepared, prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Auxiliary, Request

pytestmark = [
    # the library warns of words that it leaves out
    pytest.mark.filterwarnings("ignore:Sentence of length:UserWarning"),
    pytest.mark.usefixtures("one_recorder"),
]

MINE = [{"id": "mine", "text": "Ada Lovelace met Charles Babbage in London.", "labels": ["person", "city"]}]


def silent() -> Progress:
    return Progress(lambda line: None)


def prepared(source: Path, output: Path, **changes: Any) -> Prepared:
    return prepare(
        Request(plugin=catalog.get("deberta_gliner"), source=str(source), output=output, **changes), silent()
    )


def recorded(output: Path) -> set[str]:
    return {case["id"] for case in json.loads((output / manifest.CASES).read_bytes())}


def test_a_users_cases_are_recorded_and_can_be_recorded_anew(published: Callable[[str], Path], tmp_path: Path) -> None:
    source, output = published("deberta_gliner"), tmp_path / "key"
    first = prepared(source, output, inputs=tuple(MINE))
    assert {"mine", "mine:scores"} <= recorded(output)
    with pytest.raises(Unsupported, match="inputs"):
        prepared(source, output)
    with pytest.raises(Unsupported, match="--inputs"):
        record(output, (), silent(), given=False, checkpoint=source)
    with pytest.raises(Unsupported, match="--checkpoint"):
        record(output, (), silent())
    second = record(output, (), silent(), checkpoint=source)
    manifest.verify(output, second.digest)
    assert second.digest != first.digest
    assert not {"mine", "mine:scores"} & recorded(output)
    third = record(output, tuple(MINE), silent(), checkpoint=source)
    assert (third.digest, third.reference) == (first.digest, first.reference)
    assert not (tmp_path / ".staging").exists()


def test_what_is_no_sound_artifact_is_not_recorded_anew(published: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(ChecksumMismatch):
        record(tmp_path, (), silent())
    prepared(published("deberta_gliner"), tmp_path / "key")
    (tmp_path / "key" / "model" / "config.json").write_text("{}", encoding="utf-8")
    before = fingerprints(tmp_path / "key")
    with pytest.raises(ChecksumMismatch, match=r"config\.json"):
        record(tmp_path / "key", (), silent())
    assert fingerprints(tmp_path / "key") == before


def fingerprints(folder: Path) -> list[tuple[str, str]]:
    return sorted(
        (str(path), hashlib.sha256(path.read_bytes()).hexdigest()) for path in folder.rglob("*") if path.is_file()
    )


def test_a_sentence_transformer_needs_no_further_repository(checkpoint: Path, plugin: Any, tmp_path: Path) -> None:
    further = tmp_path / "further"
    further.mkdir()
    (further / "config.json").write_text("{}", encoding="utf-8")
    request = Request(
        plugin=plugin, source=str(checkpoint), output=tmp_path / "key", auxiliary=(Auxiliary(str(further)),)
    )
    with pytest.raises(PrepareError, match="no auxiliary repository"):
        prepare(request, silent())


def test_a_case_longer_than_the_encoders_positions_is_refused_with_the_field(tmp_path: Path) -> None:
    from encoder_checkpoints import gliner

    positions = {"position_biased_input": True, "max_position_embeddings": 128}
    # the library itself would raise IndexError
    source = gliner.build(tmp_path / "source", "deberta_gliner", encoder=positions)
    with pytest.raises(Unsupported, match=r"tokens, and encoder_config\.max_position_embeddings is 128"):
        prepared(source, tmp_path / "key")
