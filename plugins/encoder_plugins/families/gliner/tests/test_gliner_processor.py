"""From a request's data to its answer, against the library's own inference, with the library's model as the engine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from encoder_plugins.backbones import token_marks
from encoder_plugins.errors import InvalidRequest, UnknownAdapter, UnknownModel
from encoder_plugins.families.gliner import payload, words
from encoder_plugins.families.gliner.limits import LIMITS
from encoder_plugins.families.gliner.payload import Item
from encoder_plugins.families.gliner.processor import GlinerProcessor, Parsed
from encoder_plugins.families.gliner.request import LOW_THRESHOLD, Request
from encoder_plugins.families.gliner.tests.library import MAX_WORDS, Library
from encoder_plugins.inputs import body as bodies
from encoder_plugins.plugin import POOLING
from encoder_plugins.serving.processor import Prompt, Response, ServingContext
from encoder_plugins.serving.rounds import ENGINE, ManualEngine, Round, Running, advance

# the library and torch warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore")

SCORE = 1e-6
LABELS = ["person", "company", "city", "date of birth", "sports team", "country", "river"]
TEXTS = [
    "Tim Cook leads Apple in Cupertino, and Angela Merkel was born in Hamburg on 17 July 1954.",
    "short",
    "👩‍🚀 İstanbul'da re\u0301sume\u0301\r\n東京は日本の首都。",
    "a <<ENT>> b [SEP] \u200b c",
    "The European Central Bank in Frankfurt raised its rate by 0.25 % in June. " * 5,
    " \n\t",
    "",
]


def processor(library: Library, *, engine_tokens: int = 4096, **limits: int) -> GlinerProcessor:
    """Return our processor as a server would make it."""
    values = {limit.name: limit.default for limit in LIMITS} | limits
    context = ServingContext(
        model=library.folder, max_model_len=engine_tokens, names=("ner",), limits=values, adapters=frozenset({"legal"})
    )
    return GlinerProcessor(context)


def parsed(processor: GlinerProcessor, **data: Any) -> Parsed:
    found = processor.parse(POOLING, bodies.encode(data))
    assert isinstance(found, Parsed)
    return found


def texts_of(prompt: Prompt) -> list[tuple[list[int], Item]]:
    """Return the tokens and the positions of each text of a prompt."""
    items = payload.decode(prompt.parameters)
    assert items is not None
    marks = token_marks.decode(prompt.parameters, len(prompt.token_ids))
    left = iter(prompt.token_ids)
    counts = [len(prompt.token_ids)] if marks is None else marks.tokens.tolist()
    return [(list(islice(left, count)), item) for count, item in zip(counts, items, strict=True)]


def pooled(library: Library, prompt: Prompt) -> torch.Tensor:
    """Answer a prompt as our pooler does, from the library's logits for each of its texts."""
    tables, words = [], 0
    for tokens, item in texts_of(prompt):
        extra = payload.encode(item.words, item.labels, item.threshold, item.classes)
        table = library.pooled(tokens, extra)
        table[:, payload.START] += words
        words += len(item.words)
        tables.append(table)
    return torch.cat(tables)


def answered(library: Library, processor: GlinerProcessor, **data: Any) -> dict[str, Any]:
    """Return the answer of our processor, with the library's model in the engine's place."""
    running: Running = processor.run(processor.parse(POOLING, bodies.encode(data)), ENGINE)
    found = advance(running)
    if isinstance(found, Round):
        found = advance(running, [pooled(library, prompt) for prompt in found.prompts])
    assert isinstance(found, Response)
    answer: dict[str, Any] = json.loads(found.body)["data"]
    assert found.prompt_tokens == answer["usage"]["prompt_tokens"]
    return answer


def assert_same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], text: str) -> None:
    """Compare entities one by one and in order."""
    assert [{**entity, "score": 0, "class_probs": 0} for entity in ours] == [
        {**entity, "score": 0, "class_probs": 0} for entity in theirs
    ]
    assert [entity["score"] for entity in ours] == pytest.approx([entity["score"] for entity in theirs], abs=SCORE)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.get("class_probs", {}) == pytest.approx(other.get("class_probs", {}), abs=SCORE)
        assert list(mine.get("class_probs", {})) == list(other.get("class_probs", {}))
        assert text[mine["start"] : mine["end"]] == mine["text"]


def refusal(processor: GlinerProcessor, **data: Any) -> tuple[str | None, str]:
    with pytest.raises(InvalidRequest) as caught:
        parsed(processor, **data)
    return caught.value.param, str(caught.value)


# every pair of two options' values
OPTIONS = [
    (0, True, True),
    (0, False, False),
    (0.1, True, False),
    (0.1, False, True),
    (0.5, True, True),
    (0.5, False, False),
    (1, True, False),
]


@pytest.mark.parametrize(("threshold", "flat", "multi_label"), OPTIONS)
def test_entities_are_the_library_s_with_all_options(
    one: Library, threshold: float, flat: bool, multi_label: bool
) -> None:
    same_entities(one, TEXTS, threshold=threshold, flat_ner=flat, multi_label=multi_label)


def test_entities_are_the_library_s(library: Library) -> None:
    same_entities(library, TEXTS, threshold=0.1, flat_ner=False, multi_label=True)


def same_entities(library: Library, texts: Sequence[str], **options: Any) -> None:
    options["return_class_probs"] = True
    served = processor(library)
    answer = answered(library, served, texts=texts, labels=LABELS, **options)
    found = 0
    for text, result in zip(texts, answer["results"], strict=True):
        expected = library.entities(text, LABELS, **options)
        assert_same(result["entities"], expected, text)
        found += len(expected)
    assert found or options["threshold"] == 1
    assert all(set(result) == {"entities"} for result in answer["results"])
    alone = answered(library, served, text=texts[0], labels=LABELS, **options)
    assert alone["entities"] == answer["results"][0]["entities"]


def test_each_text_can_have_its_own_labels(library: Library) -> None:
    lists = [["person", "city"], ["city", "city"], [], ["a b c"], LABELS, ["person"], []]
    answer = answered(library, processor(library), texts=TEXTS, labels_per_text=lists, threshold=0.2)
    for text, labels, result in zip(TEXTS, lists, answer["results"], strict=True):
        assert_same(result["entities"], library.entities(text, labels, threshold=0.2), text)
    assert answer["results"][2]["entities"] == []


def test_input_spans_are_the_library_s(library: Library) -> None:
    text = TEXTS[0]
    starts = words.starts(text, words.split(text))
    ends = [start + len(word) for start, word in zip(starts, words.split(text), strict=True)]
    spans = [{"start": start, "end": end} for start in starts for end in ends if start < end]
    spans += [{"start": 1, "end": 8}, {"start": 0, "end": 7}, {"start": 8, "end": 0}, {"start": 0, "end": 10**6}]
    served = processor(library)
    for chosen in (spans, spans[::3], spans[-4:], []):
        options = {"threshold": 0.05, "input_spans": [chosen]}
        expected = library.entities(text, LABELS, **options)
        assert_same(answered(library, served, text=text, labels=LABELS, **options)["entities"], expected, text)


def test_a_text_that_is_too_long_is_refused_with_both_numbers(one: Library) -> None:
    served = processor(one)
    fits, too_long = "word " * MAX_WORDS, "word " * (MAX_WORDS + 1)
    assert len(parsed(served, text=fits, labels=["x"]).prompts) == 1
    path, says = refusal(served, texts=["fine", too_long], labels=["x"])
    assert path == "data.texts[1]"
    assert f"{MAX_WORDS + 1} words; the model takes {MAX_WORDS}" in says
    # more tokens than the engine takes
    small = processor(one, engine_tokens=100)
    path, says = refusal(small, text="word " * 110, labels=["x"])
    tokens = len(parsed(served, text="word " * 110, labels=["x"]).prompts[0].token_ids)
    assert path == "data.text"
    assert f"{tokens} tokens; the model takes 100" in says
    assert (
        f"{tokens} tokens; this server takes 100"
        in refusal(small, text="word " * 110, labels=["x"], overflow="truncate")[1]
    )


def test_truncated_texts_are_the_library_s_and_say_so(library: Library) -> None:
    served = processor(library)
    for text in (TEXTS[4] * 3, "Hamburg " * MAX_WORDS, TEXTS[0], " "):
        sent = len(words.split(text))
        answer = answered(library, served, text=text, labels=LABELS, threshold=0.1, overflow="truncate")
        assert_same(answer["entities"], library.entities(text, LABELS, threshold=0.1), text)
        assert answer["truncated"] is (sent > MAX_WORDS)
        assert answer["words_kept"] == min(sent, MAX_WORDS)
        assert answer["usage"]["words"] == sent


def test_a_word_without_tokens_is_not_cut_off(one: Library, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer_config.json"):
        shutil.copy(one.folder / name, tmp_path)
    about = json.loads((one.folder / "tokenizer.json").read_bytes())
    drop = {"type": "Replace", "pattern": {"String": "\u200b"}, "content": ""}
    before = [about["normalizer"]] if about["normalizer"] else []
    about["normalizer"] = {"type": "Sequence", "normalizers": [drop, *before]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(about), encoding="utf-8")
    served = processor(Library(tmp_path))
    dropping = replace(one, changes={"drop": "\u200b"})
    for text, truncated in ((f"\u200b {TEXTS[0]}", False), (f"\u200b {TEXTS[4] * 3}", True)):
        answer = answered(dropping, served, text=text, labels=LABELS, threshold=0.1, overflow="truncate")
        assert_same(answer["entities"], dropping.entities(text, LABELS, threshold=0.1), text)
        kept = min(len(words.split(text)), MAX_WORDS)
        assert (answer["truncated"], answer["words_kept"]) == (truncated, kept)


def limited(library: Library, folder: Path) -> GlinerProcessor:
    """Return a processor whose tokenizer takes 40 tokens."""
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(library.folder / name, folder)
    about = json.loads((library.folder / "tokenizer_config.json").read_bytes()) | {"model_max_length": 40}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    values = {limit.name: limit.default for limit in LIMITS}
    return GlinerProcessor(ServingContext(model=folder, max_model_len=4096, names=("ner",), limits=values))


def test_the_tokenizer_s_own_limit_truncates_as_in_the_library(one: Library, tmp_path: Path) -> None:
    served = limited(one, tmp_path)
    cutting = replace(one, changes={"limit": 40})
    options = {"threshold": 0.1, "flat_ner": False}
    answer = answered(cutting, served, text=TEXTS[0], labels=LABELS[:2], overflow="truncate", **options)
    theirs = cutting.entities(TEXTS[0], LABELS[:2], **options)
    assert answer["truncated"]
    split = words.split(TEXTS[0])
    assert 0 < answer["words_kept"] < len(split)
    # the library scores words that were cut off as rows of zeros, and finds entities in them; we do not
    end = words.starts(TEXTS[0], split)[answer["words_kept"] - 1] + len(split[answer["words_kept"] - 1])
    kept = [entity for entity in theirs if entity["end"] <= end]
    assert 0 < len(kept) < len(theirs)
    assert_same(answer["entities"], kept, TEXTS[0])
    path, says = refusal(served, text=TEXTS[0], labels=LABELS[:2])
    assert path == "data.text"
    assert "tokens; the model takes 40" in says


def test_a_text_in_parts_finds_in_each_part_what_the_library_finds_there(one: Library) -> None:
    served = processor(one)
    text = TEXTS[0] + " " + " ".join(f"{TEXTS[4]}\n" for _ in range(4))
    options: dict[str, Any] = {"threshold": 0.3, "flat_ner": True}
    answer = answered(one, served, text=text, labels=LABELS, overflow="chunk", **options)
    assert answer["chunks"] > 2
    # a part is a text of its own
    prepared = parsed(served, text=text, labels=LABELS, overflow="chunk", **options)
    (reading,) = prepared.texts
    starts = words.starts(text, reading.words)
    ends = [start + len(word) for start, word in zip(starts, reading.words, strict=True)]
    scores = [
        one.logits(text[starts[part.begin] : ends[part.end - 1]], LABELS).sigmoid().numpy() for part in reading.chunks
    ]
    places = [(entity["start"], entity["end"]) for entity in answer["entities"]]
    assert len(places) > 20
    for entity, (left, right) in zip(answer["entities"], places, strict=True):
        assert text[left:right] == entity["text"]
        first, last, label = starts.index(left), ends.index(right), LABELS.index(entity["label"])
        inside = [
            score[first - part.begin, last - first, label]
            for part, score in zip(reading.chunks, scores, strict=True)
            if part.begin <= first and last < part.end
        ]
        assert any(score == pytest.approx(entity["score"], abs=1e-5) for score in inside)
    # flat across the parts, too
    assert all(before[1] <= behind[0] for before, behind in pairwise(places))
    # and there are entities in each part
    borders = [starts[part.begin] for part in reading.chunks] + [len(text)]
    assert all(any(left <= place[0] < right for place in places) for left, right in pairwise(borders))


def test_a_text_that_fits_is_the_same_in_parts(library: Library) -> None:
    served = processor(library)
    whole = answered(library, served, texts=TEXTS, labels=LABELS, threshold=0.1)
    parts = answered(library, served, texts=TEXTS, labels=LABELS, threshold=0.1, overflow="chunk")
    assert [result["entities"] for result in parts["results"]] == [result["entities"] for result in whole["results"]]
    assert [result["chunks"] for result in parts["results"]] == [1, 1, 1, 1, 1, 0, 0]
    assert parts["usage"] == whole["usage"]


def test_a_tokenizer_s_own_limit_bounds_texts_and_parts(one: Library, tmp_path: Path) -> None:
    served = limited(one, tmp_path)
    data: dict[str, Any] = {"text": "word " * 60, "labels": ["x"]}
    assert "the model takes 40." in refusal(served, **data)[1]
    (prompt,) = parsed(served, **data, overflow="truncate").prompts
    assert len(prompt.token_ids) == 40
    parts = parsed(served, **data, overflow="chunk").parts
    assert len(parts) > 1
    assert max(len(part.tokens) for part in parts) <= 40


def test_parts_are_bounded_by_tokens_and_in_number(one: Library) -> None:
    longest = {}
    for engine_tokens in range(64, 59, -1):
        served = processor(one, engine_tokens=engine_tokens)
        prepared = parsed(served, text="word " * 200, labels=["x"], overflow="chunk")
        longest[engine_tokens] = max(len(part.tokens) for part in prepared.parts)
    # however many tokens a word has, one of them is used up to the last
    assert {most - used for most, used in longest.items()} >= {0}
    assert all(used <= most for most, used in longest.items())
    served = processor(one, engine_tokens=64)
    prepared = parsed(served, text="word " * 200, labels=["x"], overflow="chunk")
    assert all(len(prompt.token_ids) <= 64 for prompt in prepared.prompts)
    assert len(prepared.prompts) > 1
    # an entity as wide as the model finds lies within a part as a whole
    borders = list(pairwise(prepared.texts[0].chunks))
    assert {before.end - behind.begin for before, behind in borders} == {served._config.max_width}
    path, says = refusal(served, text="a " + "x" * 500, labels=["x"], overflow="chunk")
    assert (path, "the words 0 to 1 are" in says) == ("data.text", True)
    path, says = refusal(served, text="word " * 30_000, labels=["x"], overflow="chunk")
    # refused by the plan, before 30 000 words become prompts
    assert (path, "1024 parts, the limit, hold" in says) == ("data.text", True)
    path, says = refusal(served, texts=["word " * 8_000] * 2, labels=["x"], overflow="chunk")
    assert (path, "1024 parts, the limit" in says) == ("data.texts[1]", True)


def test_labels_that_leave_no_room_are_refused_by_number(one: Library) -> None:
    served = processor(one, engine_tokens=64)
    labels = [f"label {number}" for number in range(40)]
    path, says = refusal(served, texts=["fine"], labels=labels)
    assert path == "data.labels"
    assert "40 labels are" in says
    assert "the model takes 64" in says
    assert refusal(served, texts=["a", "b"], labels_per_text=[["x"], labels])[0] == "data.labels_per_text[1]"


def test_a_label_that_is_a_marker_is_refused_at_its_place(library: Library) -> None:
    served = processor(library)
    path, says = refusal(served, text="a", labels=["x", "x", f"my {library.config.class_token}"])
    assert path == "data.labels[2]"
    assert library.config.class_token in says
    path, _ = refusal(served, texts=["a", " "], labels_per_text=[["x"], ["y", library.config.separator_token]])
    assert path == "data.labels_per_text[1][1]"


@pytest.mark.parametrize("data", [{"text": " \n", "labels": ["x"]}, {"texts": ["", "a b"], "labels": []}], ids=str)
def test_nothing_to_find_needs_no_engine(one: Library, data: dict[str, Any]) -> None:
    served = processor(one)
    assert parsed(served, **data).prompts == []
    answer = answered(one, served, **data)
    assert answer["usage"]["prompt_tokens"] == 0
    results = answer["results"] if "texts" in data else [answer]
    assert all(result["entities"] == [] for result in results)


async def test_a_large_answer_is_not_decoded_on_the_event_loop(one: Library) -> None:
    sizes: list[int] = []

    class SizesEngine(ManualEngine):
        async def encode(self, prompts: Sequence[Prompt], *, lora: str | None = None) -> list[torch.Tensor]:
            return [pooled(one, prompt) for prompt in prompts]

        async def compute(
            self, function: Callable[..., Any], *arguments: object, size: int, threads: Any = None
        ) -> Any:
            sizes.append(size)
            return function(*arguments)

    served = processor(one)
    for texts, threshold in ((["a"], 0.9), (["a"] * 64, 0.9), (TEXTS[:1], 0)):
        await served.run(parsed(served, texts=texts, labels=LABELS, threshold=threshold), SizesEngine())
    # a millisecond is the most that other requests can wait
    assert sizes[0] <= 1_000 < min(sizes[1:])


def test_usage_counts_tokens_and_words(one: Library) -> None:
    served = processor(one)
    answer = answered(one, served, texts=["a b, c", "", "d"], labels=["x", "y"])
    tokens = [len(one.positions(text, ["x", "y"])[0]) for text in ("a b, c", "d")]
    assert answer["usage"] == {"prompt_tokens": sum(tokens), "words": 5}


def test_each_text_has_its_own_positions(one: Library) -> None:
    found = parsed(processor(one), texts=["a b", "", "c"], labels_per_text=[["x"], ["x"], ["y", "z"]], threshold=0.25)
    (prompt,) = found.prompts
    assert [(len(item.words), len(item.labels), item.threshold) for _, item in texts_of(prompt)] == [
        (2, 1, 0.25),
        (1, 2, 0.25),
    ]
    alone = [
        parsed(processor(one), text=text, labels=labels).prompts for text, labels in (("a b", ["x"]), ("c", ["y", "z"]))
    ]
    assert [tokens for tokens, _ in texts_of(prompt)] == [each[0].token_ids for each in alone]


def test_texts_of_one_prompt_have_the_same_number_of_classes(one: Library) -> None:
    labels = [["x", "y"], ["z", "y"], ["x"], ["y"]]
    found = parsed(processor(one), texts=["a"] * 4, labels_per_text=labels, return_class_probs=True)
    assert [[item.classes for _, item in texts_of(prompt)] for prompt in found.prompts] == [[2, 2], [1, 1]]
    assert found.packs == [2, 2]


def test_texts_in_few_prompts_are_answered_as_in_many(one: Library) -> None:
    # at least as many as class_probs holds: all texts can share a prompt
    labels = [LABELS[: 5 + number % 3] for number in range(len(TEXTS))]
    data: dict[str, Any] = {"texts": TEXTS, "labels_per_text": labels, "threshold": 0.1, "overflow": "chunk"}
    for probs in (True, False):
        data["return_class_probs"] = probs
        few, many = processor(one), processor(one, engine_tokens=150)
        assert len(parsed(few, **data).prompts) < len(parsed(many, **data).prompts) - 2
        answers = [answered(one, served, **data)["results"] for served in (few, many)]
        for text, first, second in zip(TEXTS, *answers, strict=True):
            if first["chunks"] == second["chunks"]:
                assert_same(first["entities"], second["entities"], text)
    assert sum(len(result["entities"]) for result in answers[0]) > 20


def test_with_a_low_threshold_the_pairs_are_counted(one: Library) -> None:
    data: dict[str, Any] = {"texts": ["a b c", "d"], "labels": ["x", "y"]}
    pairs = 4 * one.config.max_width * 2
    parsed(processor(one, candidates=pairs), **data, threshold=0.0)
    served = processor(one, candidates=pairs - 1)
    parsed(served, **data, threshold=LOW_THRESHOLD)
    path, says = refusal(served, **data, threshold=0.0)
    assert path == "data.threshold"
    assert f"may be {pairs - 1}; they are at least {pairs}" in says


def test_an_answer_holds_at_most_its_limit_of_entities(one: Library) -> None:
    # neither of them alone has too many
    data: dict[str, Any] = {"texts": TEXTS[:1] * 2, "labels": LABELS, "threshold": 0.1}
    count = sum(len(result["entities"]) for result in answered(one, processor(one), **data)["results"])
    answered(one, processor(one, entities=count), **data)
    with pytest.raises(InvalidRequest, match=f"more than {count - 1} entities") as caught:
        answered(one, processor(one, entities=count - 1), **data)
    assert caught.value.param == "data.threshold"


def test_every_limit_is_held_by_the_processor(one: Library) -> None:
    data: dict[str, Any] = {"texts": ["a b", "c"], "labels": ["x", "yy"]}
    for limit, value, param in (
        ("texts", 1, "data.texts"),
        ("characters_per_text", 2, "data.texts[0]"),
        ("characters", 3, "data.texts"),
        ("labels", 1, "data.labels"),
        ("label_characters", 1, "data.labels[1]"),
        ("prompts", 1, "data.texts[1]"),
    ):
        assert refusal(processor(one, **{limit: value}), **data)[0] == param, limit


def test_the_envelope_names_model_and_adapter(one: Library) -> None:
    served = processor(one)
    body = {"data": {"text": "a", "labels": ["x"]}, "model": "ner", "lora": "legal"}
    assert served.parse(POOLING, json.dumps(body).encode()).lora == "legal"
    body = {"data": {"text": "a", "labels": ["x"]}, "model": "legal"}
    assert served.parse(POOLING, json.dumps(body).encode()).lora == "legal"
    for wrong, error in (({"model": "another"}, UnknownModel), ({"lora": "another"}, UnknownAdapter)):
        with pytest.raises(error, match="another"):
            served.parse(POOLING, json.dumps(body | wrong).encode())


def test_prompts_are_pooled_with_the_adapter_of_the_request(one: Library) -> None:
    served = processor(one)
    running: Running = served.run(served.prepare(Request(text="a", labels=["x"]), "legal"), ENGINE)
    found = advance(running)
    assert isinstance(found, Round)
    assert found.lora == "legal"
    running.close()
