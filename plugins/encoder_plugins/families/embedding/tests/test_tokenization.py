"""A tokenizer of our own beside the reference's: which of its settings hold, and which tokens the engine gets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from encoder_plugins.families.embedding.tokenization import UNLIMITED, exact_tokenizer, token_limit, token_problem

WORDS = ["[UNK]", "one", "two", "three", "ONE", "[SEP]"]


def backend(normalizer: Any = None) -> Tokenizer:
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if normalizer is not None:
        made.normalizer = normalizer
    return made


def reference(own: Tokenizer, limit: int = UNLIMITED, side: str = "right", *, split: bool = False) -> Any:
    """What transformers would hold: its backend, and settings of its own."""
    return SimpleNamespace(
        backend_tokenizer=own, split_special_tokens=split, model_max_length=limit, truncation_side=side
    )


def model(**given: Any) -> Any:
    return SimpleNamespace(**{"max_tokens": None, "max_positions": None, "lower_case": False, **given})


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    found: list[int] = tokenizer.encode(text).ids
    return found


def test_what_transformers_switched_on_for_a_batch_is_off() -> None:
    switched = backend()
    switched.enable_truncation(1)
    switched.enable_padding(length=5, pad_id=0)
    own = exact_tokenizer(reference(switched), model())
    assert ids(own, "one two three") == [1, 2, 3]
    # the reference's own stays as it was
    assert ids(switched, "one two") == [1, 0, 0, 0, 0]


@pytest.mark.parametrize(("side", "expected"), [("right", [1, 2]), ("left", [2, 3])])
def test_a_limit_cuts_on_the_tokenizer_s_side(side: str, expected: list[int]) -> None:
    assert ids(exact_tokenizer(reference(backend(), 2, side), model()), "one two three") == expected


@pytest.mark.parametrize("split", [True, False])
def test_special_tokens_in_a_text_are_what_the_reference_takes_them_for(split: bool) -> None:
    own = backend()
    own.add_special_tokens(["[SEP]"])
    made = exact_tokenizer(reference(own, split=split), model())
    assert made.encode_special_tokens is split


@pytest.mark.parametrize("lower_case", [True, False])
@pytest.mark.parametrize("strip", [True, False])
def test_lower_case_comes_before_the_tokenizer_s_own_normalizer(lower_case: bool, strip: bool) -> None:
    # what would see capital letters if it came first, and what sees none in either case
    own = [normalizers.Replace("ONE", "three"), normalizers.Replace("two", "three")]
    made = exact_tokenizer(
        reference(backend(normalizers.Sequence(own) if strip else None)), model(lower_case=lower_case)
    )
    capital = 3 if strip else 4
    assert ids(made, "ONE two") == [1 if lower_case else capital, 3 if strip else 2]


def test_a_tokenizer_that_lowers_already_is_left_as_it_is() -> None:
    own = backend(normalizers.Sequence([normalizers.Lowercase()]))
    assert exact_tokenizer(reference(own), model(lower_case=True)).to_str() == own.to_str()


def test_a_word_of_the_vocabulary_is_not_taken_for_a_normalizer() -> None:
    own = backend()
    own.add_tokens(["Lowercase"])
    assert ids(exact_tokenizer(reference(own), model(lower_case=True)), "ONE") == [1]


def test_a_slow_tokenizer_is_refused_by_its_class() -> None:
    with pytest.raises(ValueError, match="SimpleNamespace; only fast"):
        exact_tokenizer(SimpleNamespace(), model())


@pytest.mark.parametrize(
    ("max_tokens", "tokenizer_limit", "max_positions", "expected"),
    [
        (7, 3, 2, 7),
        (None, 3, 5, 3),
        (None, 5, 3, 3),
        (None, UNLIMITED, 3, 3),
        (None, 3, None, 3),
        (None, UNLIMITED, None, None),
        (None, 10**30, None, None),
        (None, UNLIMITED - 1, None, UNLIMITED - 1),
    ],
)
def test_the_limit_is_the_module_s_or_the_smaller_one_of_the_others(
    max_tokens: int | None, tokenizer_limit: int, max_positions: int | None, expected: int | None
) -> None:
    assert token_limit(model(max_tokens=max_tokens, max_positions=max_positions), tokenizer_limit) == expected


@pytest.mark.parametrize(
    ("count", "padding", "says"),
    [
        (0, None, "has 0 tokens; this server takes 1 to 3"),
        (1, None, None),
        (3, None, None),
        (4, None, "has 4 tokens"),
        (3, 0, None),
        (3, 2, "padding token"),
    ],
)
def test_tokens_that_the_engine_cannot_take_are_refused(count: int, padding: int | None, says: str | None) -> None:
    problem = token_problem(range(1, count + 1), 3, padding)
    assert problem is None if says is None else says in (problem or "")
