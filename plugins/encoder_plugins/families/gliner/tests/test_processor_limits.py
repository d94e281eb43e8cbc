"""What the processor sends to the engine and where its limits are, with a tokenizer that makes one token of each word."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from encoder_plugins.backbones import token_marks
from encoder_plugins.errors import InvalidRequest, NotServable
from encoder_plugins.families.gliner import config as gliner_config
from encoder_plugins.families.gliner import payload
from encoder_plugins.families.gliner import processor as processors_of_entities
from encoder_plugins.families.gliner.label_runs import BiPromptBuilder
from encoder_plugins.families.gliner.limits import LIMITS
from encoder_plugins.families.gliner.processor import GlinerProcessor, Parsed, Unsplit
from encoder_plugins.families.gliner.words import Split
from encoder_plugins.inputs import body as bodies
from encoder_plugins.plugin import POOLING
from encoder_plugins.serving.processor import Prompt, Response, ServingContext
from encoder_plugins.serving.rounds import ENGINE, ManualEngine, Round, Running, advance

CLS, SEP, ENT, BORDER = range(1, 5)
IDS = {"[UNK]": 0, "[CLS]": CLS, "[SEP]": SEP, "<<ENT>>": ENT, "<<SEP>>": BORDER} | {
    letter: number for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz", 5)
}
A, B, C, X, Y, Z = (IDS[letter] for letter in "abcxyz")
WIDTH, WORDS = 4, 8
BY_WORD: dict[str, Any] = {"head": "token"}
PROPOSED: dict[str, Any] = {"head": "token", "represent_spans": True}
# a logit whose probability is above any threshold here, and the one of probability 0.5
SURE, HALF = 9.0, 0.0
# a millisecond is the most that other requests can wait
EVENT_LOOP_MICROSECONDS = 1_000


class WithLabelEncoder(GlinerProcessor):
    """A processor of a model whose labels have an encoder of their own."""

    def builder(self, folder: Path, tokenizer: Tokenizer, limit: int | None) -> BiPromptBuilder:
        return BiPromptBuilder(tokenizer, tokenizer, tokenizer_limit=limit, most=8)


Make = Callable[..., GlinerProcessor]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return what makes a processor of an artifact with a given configuration."""

    def made(
        *,
        kind: type[GlinerProcessor] = GlinerProcessor,
        engine_tokens: int = 64,
        tokenizer_limit: int | None = None,
        limits: dict[str, int] | None = None,
        **changes: Any,
    ) -> GlinerProcessor:
        tokenizer = Tokenizer(models.WordLevel(IDS, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "<<ENT>>", "<<SEP>>"])
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
        )
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        about = {} if tokenizer_limit is None else {"model_max_length": tokenizer_limit}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
        values: dict[str, Any] = {
            "hidden_size": 8,
            "max_width": WIDTH,
            "max_words": WORDS,
            "class_token": "<<ENT>>",
            "class_token_id": ENT,
            "separator_token": "<<SEP>>",
            "separator_token_id": BORDER,
            "lstm_layers": 0,
            "projection": False,
        }
        (tmp_path / "config.json").write_text(json.dumps({gliner_config.KEY: values | changes}))
        numbers = {limit.name: limit.default for limit in LIMITS} | (limits or {})
        return kind(ServingContext(model=tmp_path, max_model_len=engine_tokens, names=("ner",), limits=numbers))

    return made


def parsed(of: GlinerProcessor, **data: Any) -> Parsed:
    found = of.parse(POOLING, bodies.encode(data))
    assert isinstance(found, Parsed)
    return found


def refused(of: GlinerProcessor, **data: Any) -> tuple[str | None, str]:
    with pytest.raises(InvalidRequest) as caught:
        parsed(of, **data)
    return caught.value.param, caught.value.message


def answered(of: GlinerProcessor, tables: Sequence[Sequence[Sequence[float]]], **data: Any) -> list[list[Any]]:
    """Return (text, label, score) of the entities of each text, where the engine answers each prompt with a table."""
    running: Running = of.run(parsed(of, **data), ENGINE)
    step = advance(running)
    assert isinstance(step, Round)
    pooled = [torch.tensor(rows) if rows else torch.zeros(0, payload.COLUMNS) for rows in tables]
    assert len(step.prompts) == len(pooled)
    found = advance(running, pooled)
    assert isinstance(found, Response)
    results = json.loads(found.body)["data"]["results"]
    return [[(each["text"], each["label"], each["score"]) for each in result["entities"]] for result in results]


def test_a_text_alone_is_sent_as_its_tokens_and_the_positions_of_words_and_labels(make: Make) -> None:
    (prompt,) = parsed(make(), text="a b", labels=["x", "y z"], threshold=0.3).prompts
    assert list(prompt.token_ids) == [CLS, ENT, X, ENT, Y, Z, BORDER, A, B, SEP]
    assert prompt.parameters == payload.encode([7, 8], [1, 3], 0.3)
    (prompt,) = parsed(make(), text="a b", labels=["x", "y z"], return_class_probs=True).prompts
    assert prompt.parameters == payload.encode([7, 8], [1, 3], 0.5, classes=2)


def test_texts_together_are_sent_with_how_many_tokens_words_and_labels_each_has(make: Make) -> None:
    (prompt,) = parsed(make(), texts=["a b", "c"], labels_per_text=[["x"], ["y", "z"]]).prompts
    assert list(prompt.token_ids) == [CLS, ENT, X, BORDER, A, B, SEP, CLS, ENT, Y, ENT, Z, BORDER, C, SEP]
    counts = {name: np.asarray(numbers, "<i4").tobytes() for name, numbers in (("word", [2, 1]), ("label", [1, 2]))}
    assert prompt.parameters == {
        **payload.encode([4, 5, 6], [1, 1, 3], 0.5),
        "word_counts": counts["word"],
        "label_counts": counts["label"],
        **token_marks.encode([7, 8]),
    }


def test_labels_with_an_encoder_of_their_own_are_sent_once_a_prompt_and_texts_have_their_numbers(make: Make) -> None:
    of = make(kind=WithLabelEncoder)
    runs = {label: np.asarray([CLS, IDS[label], SEP], "<i4").tobytes() for label in "xyz"}
    (alone,) = parsed(of, text="a b", labels=["y", "x"]).prompts
    assert list(alone.token_ids) == [CLS, A, B, SEP]
    assert alone.parameters == {**payload.encode([1, 2], [0, 1], 0.5), **payload.encode_runs([runs["y"], runs["x"]])}
    (prompt,) = parsed(of, texts=["a", "b", "c"], labels_per_text=[["y", "x"], ["z", "x"], ["y"]]).prompts
    items = payload.decode(prompt.parameters)
    assert items is not None
    assert [item.labels.tolist() for item in items] == [[0, 1], [2, 1], [0]]
    assert items[0].runs == (runs["y"], runs["x"], runs["z"])


def test_candidates_are_those_of_their_own_text_whichever_prompts_have_none(make: Make) -> None:
    # a text is 7 tokens, so that prompts have two texts, and the last one
    of = make(engine_tokens=14)
    tables = [[], [[1, 0, 0, SURE], [2, 0, 0, SURE]], [], [[1, 0, 0, SURE]]]
    found = answered(of, tables, texts=["a b", "b c", "c d", "d e", "e f", "f g", "g h"], labels=["x"])
    assert [[text for text, _, _ in each] for each in found] == [[], [], ["d"], ["d"], [], [], ["h"]]


@pytest.mark.parametrize("count", [1, 2, 100])
def test_candidates_are_numbered_by_the_words_of_all_texts_of_a_prompt(make: Make, count: int) -> None:
    table = [[2.0 * (count - 1) + 1, 0, 0, SURE]]
    found = answered(make(engine_tokens=1_024), [table], texts=["a b"] * count, labels=["x"])
    assert [[text for text, _, _ in each] for each in found] == [*[[]] * (count - 1), ["b"]]


@pytest.mark.parametrize("overflow", ["refuse", "truncate", "chunk"])
def test_a_prompt_fills_what_the_engine_takes_to_the_last_token(make: Make, overflow: str) -> None:
    of = make(engine_tokens=10)
    (prompt,) = parsed(of, text="a b c d e", labels=["x"], overflow=overflow).prompts
    assert len(prompt.token_ids) == 10
    if overflow == "chunk":
        # each part has room for 5 words, and 4 of them are in the next one as well
        parts = parsed(of, text="a b c d e f", labels=["x"], overflow=overflow).parts
        assert [list(part.tokens[4:-1]) for part in parts] == [[A, B, C, C + 1, C + 2], [B, C, C + 1, C + 2, C + 3]]
        return
    takes = {
        "refuse": 'the model takes 10. "overflow" can be "chunk" or "truncate"',
        "truncate": 'this server takes 10. "overflow" can be "chunk"',
    }
    assert refused(of, text="a b c d e f", labels=["x"], overflow=overflow) == (
        "data.text",
        f"labels and text are 11 tokens; {takes[overflow]}",
    )


@pytest.mark.parametrize(
    ("options", "most", "overlap"),
    [({}, WIDTH + 1, WIDTH), ({}, WIDTH, WIDTH - 1), ({}, 1, 0), (BY_WORD, WIDTH + 1, WIDTH), (BY_WORD, WIDTH, 2)],
)
def test_chunks_share_fewer_words_than_one_of_them_has(
    make: Make, options: dict[str, Any], most: int, overlap: int
) -> None:
    (text,) = parsed(make(max_words=most, **options), text="a b c " * 7, labels=["x"], overflow="chunk").texts
    assert (text.chunks[0].begin, text.chunks[-1].end) == (0, 21)
    assert {chunk.end - chunk.begin for chunk in text.chunks[:-1]} == {most}
    assert {before.end - behind.begin for before, behind in pairwise(text.chunks)} == {overlap}


def test_what_the_tokenizer_cuts_off_counts_among_the_tokens_of_a_refusal(make: Make) -> None:
    of = make(tokenizer_limit=8)
    assert len(parsed(of, text="a b c", labels=["x"]).prompts[0].token_ids) == 8
    assert refused(of, texts=["a", "a b c d e f"], labels=["x"]) == (
        "data.texts[1]",
        'labels and text are 11 tokens; the model takes 8. "overflow" can be "chunk" or "truncate"',
    )


def test_labels_have_to_leave_room_for_one_token_of_the_text(make: Make) -> None:
    of = make(engine_tokens=10)
    (prompt,) = parsed(of, text="a", labels=["x", "y", "z"]).prompts
    assert len(prompt.token_ids) == 10
    assert refused(of, text="a", labels=["x", "y", "z z"]) == (
        "data.labels",
        "3 labels are 9 tokens; the model takes 10 with the text",
    )


@pytest.mark.parametrize(
    ("head", "count", "counted"),
    [
        ({}, 3 * WIDTH * 2, "words times span widths times labels"),
        (BY_WORD, 3 * 2, "words times labels"),
        # of three words: three single ones, two pairs, and all of them
        (PROPOSED, 6 * 2, "spans times labels"),
    ],
    ids=["spans", "words", "proposed spans"],
)
def test_with_a_low_threshold_what_a_model_may_find_is_counted(
    make: Make, head: dict[str, Any], count: int, counted: str
) -> None:
    data: dict[str, Any] = {"text": "a b c", "labels": ["x", "y"]}
    parsed(make(limits={"candidates": count}, **head), **data, threshold=0.05)
    fewer = make(limits={"candidates": count - 1}, **head)
    parsed(fewer, **data, threshold=0.1)
    assert refused(fewer, **data, threshold=0.05) == (
        "data.threshold",
        f"with a threshold below 0.1, {counted} may be {count - 1}; they are at least {count}",
    )


# what the engine finds in two texts of two words: each word, and both together
FOUND_WORDS = [[float(word), 0, SURE, SURE, SURE] for word in range(4)]
FOUND_SPANS = [[start + word, further, 0, SURE] for start in (0.0, 2.0) for word, further in ((0, 0), (0, 1), (1, 0))]


@pytest.mark.parametrize(("head", "table"), [(BY_WORD, FOUND_WORDS), (PROPOSED, FOUND_SPANS)], ids=["words", "spans"])
def test_a_request_may_have_as_many_spans_as_the_limit(
    make: Make, monkeypatch: pytest.MonkeyPatch, head: dict[str, Any], table: list[list[float]]
) -> None:
    # the limit of a pooler is that of one text, and none of them has more
    monkeypatch.setattr(payload, "MOST_CANDIDATES", 3)
    data: dict[str, Any] = {"texts": ["a b", "c d"], "labels": ["x"], "flat_ner": False}
    found = answered(make(limits={"candidates": 6}, **head), [table], **data)
    assert [[text for text, _, _ in each] for each in found] == [["a", "a b", "b"], ["c", "c d", "d"]]
    with pytest.raises(InvalidRequest) as caught:
        answered(make(limits={"candidates": 5}, **head), [table], **data)
    assert caught.value.param == "data.threshold"
    assert caught.value.message == "the scores permit at least 6 spans; the limit is 5"


def test_a_text_with_more_spans_than_a_pooler_keeps_is_refused_with_the_pooler_s_limit(make: Make) -> None:
    count = payload.MOST_CANDIDATES + 1
    table = [[0.0, 0.0, payload.TOO_MANY, float(count)]]
    with pytest.raises(InvalidRequest) as caught:
        answered(make(limits={"candidates": 2 * count}, **PROPOSED), [table], texts=["a b"], labels=["x"])
    assert caught.value.message == "the scores permit at least 1048577 spans; the limit is 1048576"


def test_a_word_whose_score_as_inside_is_the_threshold_is_an_entity(make: Make) -> None:
    # as in the library: a start and an end have to be above it
    for threshold, expected in ((0.5, [("a", "x", 0.5)]), (0.51, [])):
        table = [[0.0, 0.0, SURE, SURE, HALF]]
        assert answered(make(**BY_WORD), [table], texts=["a"], labels=["x"], threshold=threshold) == [expected]
    assert answered(make(**BY_WORD), [[[0.0, 0.0, HALF, SURE, SURE]]], texts=["a"], labels=["x"]) == [[]]


@pytest.mark.parametrize("head", [BY_WORD, PROPOSED], ids=["words", "spans"])
def test_spans_of_the_client_that_end_before_they_begin_or_hold_no_words_are_none(
    make: Make, head: dict[str, Any]
) -> None:
    of, table = make(**head), FOUND_WORDS[:2] if head is BY_WORD else FOUND_SPANS[:3]
    for start, end, expected in ((0, 3, ["a b"]), (2, 3, ["b"]), (2, 1, []), (1, 3, []), (0, 2, []), (5, 9, [])):
        spans = [[{"start": start, "end": end}]]
        (found,) = answered(of, [table], texts=["a b"], labels=["x"], input_spans=spans)
        assert [text for text, _, _ in found] == expected


class Timed(ManualEngine):
    """An engine that finds nothing, or the given tables, and notes how long each computation is expected to take."""

    def __init__(self, *tables: torch.Tensor) -> None:
        self.tables = list(tables)
        self.sizes: list[int] = []

    async def encode(self, prompts: Sequence[Prompt], *, lora: str | None = None) -> list[torch.Tensor]:
        return self.tables or [torch.zeros(0, payload.COLUMNS) for _ in prompts]

    async def compute(self, function: Callable[..., Any], *arguments: object, size: int, threads: Any = None) -> Any:
        self.sizes.append(size)
        return function(*arguments)


async def test_an_answer_of_a_hundred_candidates_is_made_at_once_and_one_of_a_thousand_is_not(make: Make) -> None:
    of = make()
    for count, inline in ((100, True), (1_000, False)):
        engine = Timed(torch.tensor([[0.0, 0.0, 0.0, SURE]] * count))
        await of.run(parsed(of, text="a", labels=["x"]), engine)
        assert [size <= EVENT_LOOP_MICROSECONDS for size in engine.sizes] == [inline]


async def test_an_entity_of_a_long_text_is_not_located_on_the_event_loop(make: Make) -> None:
    of = make()
    for words, inline in ((100, True), (20_000, False)):
        engine = Timed(torch.tensor([[0.0, 0.0, 0.0, SURE]]))
        await of.run(parsed(of, text="a " * words, labels=["x"], overflow="truncate"), engine)
        assert [size <= EVENT_LOOP_MICROSECONDS for size in engine.sizes] == [inline]


class Words:
    """Stands for the tokenizers of stanza."""

    def __init__(self, *_: object) -> None: ...

    def split(self, text: str, language: str | None) -> Split:
        return Split(text.split(), language=language)


async def test_texts_that_stanza_splits_are_not_split_on_the_event_loop(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processors_of_entities, "StanzaSplitter", Words)
    of = make(languages=["en"])
    found = of.parse(POOLING, bodies.encode({"text": "a", "labels": ["x"], "language": "en"}))
    assert isinstance(found, Unsplit)
    engine = Timed()
    response = await of.run(found, engine)
    assert json.loads(response.body)["data"]["language"] == "en"
    assert [size <= EVENT_LOOP_MICROSECONDS for size in engine.sizes] == [False, True]


def test_an_artifact_with_stanza_s_tokenizers_is_not_served_without_stanza(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'langdetect'", name="langdetect")

    monkeypatch.setattr(processors_of_entities, "StanzaSplitter", missing)
    with pytest.raises(NotServable) as caught:
        make(languages=["en"])
    assert str(caught.value) == (
        "the artifact was prepared with wordsSplitter: stanza, and langdetect is not installed: use an image of this"
        " plugin, or install encoder-operator[words]"
    )
