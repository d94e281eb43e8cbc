"""Label sets as a server holds them: in few bytes, and found by text."""

from __future__ import annotations

import random
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from encoder_plugins.artifact import label_sets as format_of_sets
from encoder_plugins.artifact.label_sets import Label
from encoder_plugins.families.gliner import label_sets, set_requests
from encoder_plugins.families.gliner.label_runs import BiPromptBuilder
from encoder_plugins.families.gliner.label_sets import Texts
from encoder_plugins.families.gliner.prompt import LabelProblem

COUNT = 30_000


@pytest.fixture(scope="module")
def builder() -> BiPromptBuilder:
    """A tokenizer of 1 000 words between two tokens of its own, for labels of at most 6 tokens."""
    words = {"[CLS]": 0, "[SEP]": 1, "[UNK]": 2, **{f"w{number}": number + 3 for number in range(1_000)}}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)])
    return BiPromptBuilder(tokenizer, tokenizer, most=6)


def test_texts_are_found_by_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["", "a", "ab", "é", "東京", "a\0b", *map(str, range(500))]
    texts = Texts(given)
    assert [texts[number] for number in range(len(texts))] == given
    order = random.Random(0).sample(range(len(given)), len(given))
    assert texts.find([given[number] for number in order]) == order
    assert texts.find(["b", "", "501", "a"]) == [-1, 0, -1, 1]
    assert texts.find([]) == []
    assert Texts([]).find(["a"]) == [-1]
    # of texts with one hash, it is the one that is equal
    monkeypatch.setattr(label_sets, "hash", lambda text: len(text) % 2, raising=False)
    alike = Texts(given)
    assert alike.find([given[number] for number in order]) == order
    assert alike.find(["none"]) == [-1]


def test_a_set_holds_tokens_and_texts_of_its_labels_in_few_bytes(builder: BiPromptBuilder, tmp_path: Path) -> None:
    labels = [Label(f"Q{number}", f"w{number % 1_000} w{number // 1_000} label") for number in range(COUNT)]
    format_of_sets.write(labels, tmp_path / "mine.jsonl")
    (found,) = label_sets.read(tmp_path, builder).values()
    assert (found.name, len(found)) == ("mine", COUNT)
    names = ("w5 w0 label", "w999 w29 label")
    wanted = found.labels(names)
    assert wanted.runs == builder.labels(names).runs
    assert wanted.positions.tolist() == [0, 1]
    # one of some labels makes nothing of the others
    assert found._whole is None
    assert found.labels(found.names).runs[5] == wanted.runs[0]
    # those of the whole set are made once
    assert found.labels(found.names) is found.labels(found.names)
    assert found.lengths.tolist() == [5] * COUNT
    numbers = found.ids.find(["Q7", "Q29999", "R7"])
    assert numbers == [7, 29_999, -1]
    # beside what only a request for the whole set makes
    kept = [
        found._tokens,
        found._ends,
        *(value for texts in (found.texts, found.ids) for value in vars(texts).values()),
    ]
    size = sum(value.nbytes if isinstance(value, np.ndarray) else len(value) for value in kept)
    assert size / COUNT < 100


def test_a_label_that_the_model_does_not_take_is_named_by_its_number(
    builder: BiPromptBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = [f"w{number % 9}" for number in range(12_000)]
    tokenised = Mock(wraps=builder.runs)
    monkeypatch.setattr(builder, "runs", tokenised)
    assert len(list(label_sets.runs_of(labels, builder))) == 12_000
    # encodings take many times the memory of the tokens that are kept of them
    assert max(len(call.args[0]) for call in tokenised.call_args_list) <= 10_000
    for bad, message in (("w1 w2 w3 w4 w5", "7 tokens; the model takes 6"), (" ", "leaves nothing")):
        with pytest.raises(LabelProblem, match=message) as caught:
            list(label_sets.runs_of([*labels, bad, "w1"], builder))
        assert caught.value.position == 12_000


def test_slices_hold_labels_of_like_length_and_each_label_once() -> None:
    lengths = np.random.default_rng(0).integers(1, 40, 5_000)
    found = list(set_requests.slices(lengths, 512))
    assert sorted(np.concatenate(found).tolist()) == list(range(5_000))
    assert all(lengths[numbers].sum() <= 512 for numbers in found)
    assert np.array_equal(lengths[np.concatenate(found)], np.sort(lengths))
    assert [numbers.tolist() for numbers in set_requests.slices(np.array([9, 3, 600]), 512)] == [[1, 0], [2]]
    assert [numbers.tolist() for numbers in set_requests.slices(np.array([600, 9, 700]), 8)] == [[1], [0], [2]]
    # each slice may be full
    full = set_requests.slices(np.full(6, 4), 8)
    assert [numbers.tolist() for numbers in full] == [[0, 1], [2, 3], [4, 5]]
    assert list(set_requests.slices(lengths[:0])) == []
