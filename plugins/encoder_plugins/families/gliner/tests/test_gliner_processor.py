"""From a request's data to its answer, against the library's own inference, with the library's model as the engine."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.gliner import payload, words
from encoder_plugins.families.gliner.request import Request
from encoder_plugins.families.gliner.tests.library import MAX_WORDS, Library

if TYPE_CHECKING:
    from encoder_plugins.families.gliner.io_processor import GlinerProcessor

pytestmark = [
    pytest.mark.engine,
    # the processor's module imports vLLM, which warns a lot about itself
    pytest.mark.filterwarnings("ignore"),
]

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
    """Return our processor as vLLM would make it."""
    from encoder_plugins.families.gliner.io_processor import GlinerProcessor

    model_config = SimpleNamespace(model=str(library.folder), served_model_name="ner", max_model_len=engine_tokens)
    additional = {"encoder": {"plugin": "deberta_gliner", "limits": limits}}
    scheduler_config = SimpleNamespace(policy="priority")
    config: Any = SimpleNamespace(
        model_config=model_config, additional_config=additional, scheduler_config=scheduler_config
    )
    renderer: Any = None
    return GlinerProcessor(config, renderer)


def answered(library: Library, processor: GlinerProcessor, **data: Any) -> dict[str, Any]:
    """Ask our processor, with the library's model in the engine's place."""
    prepared = processor.prepare(Request.model_validate(data))
    pooled: Any = [
        SimpleNamespace(outputs=SimpleNamespace(data=library.pooled(tokens, extra)))
        for tokens, extra in zip(prepared.token_ids, prepared.extras, strict=True)
    ]
    return processor.answer(prepared, pooled)


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
        processor.prepare(Request.model_validate(data))
    return caught.value.param, str(caught.value)


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("multi_label", [True, False])
@pytest.mark.parametrize("threshold", [0, 0.1, 0.5, 1])
def test_entities_are_the_library_s(library: Library, threshold: float, flat: bool, multi_label: bool) -> None:
    options = {"threshold": threshold, "flat_ner": flat, "multi_label": multi_label, "return_class_probs": True}
    served = processor(library)
    answer = answered(library, served, texts=TEXTS, labels=LABELS, **options)
    found = 0
    for text, result in zip(TEXTS, answer["results"], strict=True):
        expected = library.entities(text, LABELS, **options)
        assert_same(result["entities"], expected, text)
        assert answered(library, served, text=text, labels=LABELS, **options)["entities"] == result["entities"]
        found += len(expected)
    assert found or threshold == 1
    assert all(set(result) == {"entities"} for result in answer["results"])


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
    assert len(served.prepare(Request(text=fits, labels=["x"])).token_ids) == 1
    path, says = refusal(served, texts=["fine", too_long], labels=["x"])
    assert path == "data.texts[1]"
    assert f"{MAX_WORDS + 1} words; the model takes {MAX_WORDS}" in says
    # more tokens than the engine takes
    small = processor(one, engine_tokens=100)
    path, says = refusal(small, text="word " * 110, labels=["x"])
    tokens = len(served.prepare(Request(text="word " * 110, labels=["x"])).token_ids[0])
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


def test_the_tokenizer_s_own_limit_truncates_as_in_the_library(one: Library) -> None:
    served = processor(one)
    served.builder.limit = served.most_tokens = 40
    before, one.tokenizer.model_max_length = one.tokenizer.model_max_length, 40
    try:
        options = {"threshold": 0.1, "flat_ner": False}
        answer = answered(one, served, text=TEXTS[0], labels=LABELS[:2], overflow="truncate", **options)
        # words that were cut off are rows of zeros, and can be part of entities
        assert_same(answer["entities"], one.entities(TEXTS[0], LABELS[:2], **options), TEXTS[0])
    finally:
        one.tokenizer.model_max_length = before
    assert answer["truncated"]
    assert 0 < answer["words_kept"] < len(words.split(TEXTS[0]))
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
    prepared = served.prepare(Request(text=text, labels=LABELS, overflow="chunk", **options))
    (reading,) = prepared.readings
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


def test_parts_are_bounded_by_tokens_and_in_number(one: Library) -> None:
    served = processor(one, engine_tokens=64)
    prepared = served.prepare(Request(text="word " * 200, labels=["x"], overflow="chunk"))
    assert all(len(tokens) <= 64 for tokens in prepared.token_ids)
    path, says = refusal(served, text="a " + "x" * 500, labels=["x"], overflow="chunk")
    assert (path, "the words 0 to 1 are" in says) == ("data.text", True)
    path, says = refusal(served, text="word " * 30_000, labels=["x"], overflow="chunk")
    assert (path, "1024 parts, the limit" in says) == ("data.text", True)
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
def test_nothing_to_find_still_makes_a_prompt(library: Library, data: dict[str, Any]) -> None:
    prepared = processor(library).prepare(Request.model_validate(data))
    (tokens,), (extra,) = prepared.token_ids, prepared.extras
    [item] = payload.decode(extra) or []
    # right for a pooler that knows nothing of requests without words
    assert [tokens[place] for place in (*item.labels, *item.words)] == [
        library.config.class_token_id,
        library.config.separator_token_id,
    ]
    answer = answered(library, processor(library), **data)
    assert answer["usage"]["prompt_tokens"] == 0
    results = answer["results"] if "texts" in data else [answer]
    assert all(result["entities"] == [] for result in results)


def test_usage_counts_tokens_and_words(one: Library) -> None:
    served = processor(one)
    answer = answered(one, served, texts=["a b, c", "", "d"], labels=["x", "y"])
    tokens = [len(one.positions(text, ["x", "y"])[0]) for text in ("a b, c", "d")]
    assert answer["usage"] == {"prompt_tokens": sum(tokens), "words": 5}


def test_each_prompt_has_its_own_parameters(one: Library) -> None:
    from vllm import PoolingParams

    served = processor(one)
    data = {"texts": ["a b", "", "c"], "labels": ["x"]}
    first, second = served.parse_data(data), served.parse_data({"text": "d e f", "labels": ["y"]})
    for prepared, prompts in ((first, 2), (second, 1)):
        assert len(served.pre_process(prepared, "the same")) == prompts
        online: Any = served.merge_pooling_params()
        assert online.task == "token_classify"
        assert [params.extra_kwargs for params in online] == prepared.extras
    # in process vLLM asks once for each prompt
    served.pre_process(first)
    assert [served.merge_pooling_params(PoolingParams()).extra_kwargs for _ in range(2)] == first.extras


def test_with_a_low_threshold_the_pairs_are_counted(one: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    from encoder_plugins.families.gliner import request

    served = processor(one)
    data: dict[str, Any] = {"texts": ["a b c", "d"], "labels": ["x", "y"]}
    pairs = 4 * one.config.max_width * 2
    monkeypatch.setattr(request, "CANDIDATES", pairs)
    served.prepare(Request(**data, threshold=0.0))
    monkeypatch.setattr(request, "CANDIDATES", pairs - 1)
    served.prepare(Request(**data, threshold=request.LOW_THRESHOLD))
    path, says = refusal(served, **data, threshold=0.0)
    assert path == "data.threshold"
    assert f"may be {pairs - 1}; they are at least {pairs}" in says


def test_an_answer_holds_so_many_entities(one: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    from encoder_plugins.families.gliner import request

    served = processor(one)
    data: dict[str, Any] = {"texts": TEXTS[:2], "labels": LABELS, "threshold": 0.1}
    count = sum(len(result["entities"]) for result in answered(one, served, **data)["results"])
    monkeypatch.setattr(request, "ENTITIES", count)
    answered(one, served, **data)
    monkeypatch.setattr(request, "ENTITIES", count - 1)
    with pytest.raises(InvalidRequest, match=f"more than {count - 1} entities") as caught:
        answered(one, served, **data)
    assert caught.value.param == "data.threshold"
