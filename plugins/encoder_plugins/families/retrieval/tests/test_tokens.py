"""Which tokens and rows a text has, by each setting of a checkpoint; the library's own are those of each plugin's tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from encoder_plugins.families.retrieval import payload
from encoder_plugins.families.retrieval.config import Expansion, InputType, RetrievalConfig, Side
from encoder_plugins.families.retrieval.tokens import FILE, TextTokenizer, TokenisedText

CLS, SEP, MASK, BREAD, COMMA, WATER = range(1, 7)
VOCABULARY = {"[UNK]": 0, "[CLS]": CLS, "[SEP]": SEP, "[MASK]": MASK, "bread": BREAD, ",": COMMA, "water": WATER}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with a tokenizer of few words."""
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    tokenizer.save(str(tmp_path / FILE))
    return tmp_path


def config(*, attend: bool = False, skiplist: tuple[int, ...] = (COMMA,)) -> RetrievalConfig:
    return RetrievalConfig(
        query=Side(prompt="", most_tokens=8, skips=False),
        document=Side(prompt="water ", most_tokens=5, skips=True, prefix_length=0),
        expansion=Expansion(length=5, token_id=MASK, attend=attend),
        skiplist=skiplist,
        projection=(),
        normalize=True,
        similarity="maxsim",
    )


@pytest.mark.parametrize(
    ("kind", "text", "ids", "keys", "kept"),
    [
        ("query", "bread", [CLS, BREAD, SEP, MASK, MASK], 3, None),
        # as long as the expansion, and longer
        ("query", "bread bread ,", [CLS, BREAD, BREAD, COMMA, SEP], 5, None),
        ("query", "bread " * 9, [CLS, *[BREAD] * 6, SEP], 8, None),
        ("document", "bread", [CLS, WATER, BREAD, SEP], 4, None),
        ("document", ",", [CLS, WATER, COMMA, SEP], 4, [True, True, False, True]),
        ("document", ", bread bread", [CLS, WATER, COMMA, BREAD, SEP], 5, [True, True, False, True, True]),
    ],
)
def test_a_text_is_filled_up_or_cut_and_skips_tokens_by_its_kind(
    kind: InputType, text: str, ids: list[int], keys: int, kept: list[bool] | None, folder: Path
) -> None:
    (found,) = TextTokenizer(folder, config())([text], kind)
    assert (found.ids, found.keys, found.tokens) == (ids, keys, len(ids))
    assert (None if found.kept is None else found.kept.tolist()) == kept
    assert found.rows == (len(ids) if kept is None else sum(kept))
    # without an image, and without parameters where they would say nothing
    assert (found.image, found.image_tokens) == (None, 0)
    assert (payload.encode([found]) is None) == (kept is None and keys == len(ids))
    # queries attend to what fills them up where the checkpoint says so, and nothing is skipped without a skiplist
    (other,) = TextTokenizer(folder, config(attend=True, skiplist=()))([text], kind)
    assert (other.ids, other.keys, other.kept) == (ids, len(ids), None)


def test_a_prompt_of_the_request_takes_the_place_of_that_of_the_kind(folder: Path) -> None:
    found = TextTokenizer(folder, config())(["bread", ","], "document", "bread ")
    assert [text.ids for text in found] == [[CLS, BREAD, BREAD, SEP], [CLS, BREAD, COMMA, SEP]]


def test_tokens_are_written_as_the_tokenizer_writes_them(folder: Path) -> None:
    # models may have entries behind those of the tokenizer
    assert TextTokenizer(folder, config()).strings([CLS, BREAD, COMMA, 7]) == ["[CLS]", "bread", ",", ""]


def test_an_image_takes_the_place_of_one_token() -> None:
    image = Image.new("RGB", (32, 32))
    found = TokenisedText([CLS, MASK, SEP], 3, None, image=image, image_tokens=40)
    assert (found.tokens, found.rows) == (42, 42)
    kept = np.arange(42) > 0
    assert TokenisedText([CLS, MASK, SEP], 3, kept, image=image, image_tokens=40).rows == 41
