"""Vocabularies of small checkpoints are the same on every machine: tests depend on scores, and those on tokens."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from encoder_checkpoints import vocabularies

KINDS = [vocabularies.bert, vocabularies.deberta, vocabularies.deberta_v1, vocabularies.mmbert, vocabularies.mt5]
LEARN = ("_unigram", "_byte_bpe", "_wordpiece", "_bpe")


@pytest.fixture
def forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process and this machine know of vocabularies is not there."""
    monkeypatch.setenv("ENCODER_CACHE", str(tmp_path))
    for name in LEARN:
        monkeypatch.setattr(vocabularies, name, getattr(vocabularies, name).__wrapped__)


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.__name__))
def test_a_small_vocabulary_is_not_trained_here(
    kind: Callable[[int], tuple[Tokenizer, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabularies, "_corpus", lambda: pytest.fail("it is trained"))
    tokenizer, _ = kind(5000)
    pieces = tokenizer.encode("Angela Merkel was born in Hamburg.").tokens
    assert "".join(pieces).replace("▁", "").replace("Ġ", "").casefold().count("hamburg") == 1


@pytest.mark.usefixtures("forgotten")
def test_a_large_one_is_trained_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []

    def corpus() -> Iterator[str]:
        trained.append(1)
        yield from ("Angela Merkel was born in Hamburg.", "Zürich liegt nicht am Meer.") * 20

    monkeypatch.setattr(vocabularies, "_corpus", corpus)
    first, second = (vocabularies.bert(10 * 12_000 + 1)[0].to_str() for _ in range(2))
    assert first == second
    assert trained == [1]
