"""The plugin on real vLLM in this process: equal to the library in all counting layers, and to itself in any company.

A mistake in conversion is never served: each ends in a refusal, or parity says Failed. The reference is the library's own, computed from
the published files, so that a mistake in what ``convert`` writes is on one side of the comparison only. One engine for each dtype; its
model is exchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from encoder_checkpoints import gliner2
from encoder_checkpoints.answer_cache import library_answer
from encoder_checkpoints.sentence import WORDS
from encoder_plugins import catalog
from encoder_plugins.artifact.reference import Recording, Reference
from encoder_plugins.families.gliner2 import cases as parity_cases
from encoder_plugins.families.gliner2 import payload
from encoder_plugins.families.gliner2 import words as splitter
from encoder_plugins.families.gliner2.payload import Item, Output
from encoder_plugins.families.gliner2.processor import item_of
from encoder_plugins.families.gliner2.prompt import PromptBuilder
from encoder_plugins.families.gliner2.tests import conversion_mutants
from encoder_plugins.families.gliner2.tests.library import read
from encoder_plugins.models.deberta_gliner2.checkpoint import CHECKPOINT
from encoder_plugins.parity.tests.served_model import Running, Served, check
from encoder_plugins.serving.processor import Prompt
from encoder_plugins.serving.tests.in_process import environment

pytestmark = [
    # vLLM, torch and transformers warn a lot about themselves
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(1200),
]

PLUGIN = catalog.get("deberta_gliner2")
LIBRARY = "encoder_plugins.families.gliner2.tests.library_model"
# of the built-in cases: all kinds of tasks and options, and few enough for a check to take a second
CASES = (
    "short:entities",
    "short:records",
    "short:labels",
    "short:attributes",
    "short:mixed",
    "short:all",
    "scripts:records",
    "scripts:relations",
    "turkish",
    "choices",
    "type-thresholds",
    "descriptions",
    "overlaps-flat",
)
ENTITIES = {"entities": ["person", "company", "city"]}
RELATIONS = {"relations": ["works for", "born in"]}
STRUCTURES = {
    "structures": {
        "event": {
            "fields": [
                {"name": "who", "dtype": "str"},
                {"name": "where", "dtype": "list"},
                {"name": "kind", "dtype": "str", "choices": ["talk", "walk"]},
            ]
        },
        "sum": {"fields": [{"name": "amount", "dtype": "list"}]},
    }
}
CLASSES = {
    "classifications": [
        {"task": "topic", "labels": ["sport", "money", "travel"]},
        {"task": "mood", "labels": ["good", "bad"], "multi_label": True},
    ]
}
ATTRIBUTES = {
    **ENTITIES,
    "entity_attributes": {"size": {"labels": ["large", "small"]}, "colour": {"labels": ["red"], "multi_label": True}},
}
SCHEMAS = [ENTITIES, RELATIONS, STRUCTURES, CLASSES, ATTRIBUTES, {**ATTRIBUTES, **RELATIONS, **STRUCTURES, **CLASSES}]
COUNTS = [1, 5, 17, 40, 3, 120, 64, 17, 2, 90, 11, 33]
# tokens of the longest prompt
LONGEST = 1024
# of logits, which are up to about ten; so probabilities differ by a quarter of it at most
EXACT = 1e-4
Sent = tuple[list[int], Item]


def cases() -> list[dict[str, Any]]:
    """Texts of 1 to 120 words, each with one of the schemas."""
    return [
        {
            "text": " ".join((WORDS * 9)[number : number + count]) + " .",
            "schema": SCHEMAS[number % len(SCHEMAS)],
            "threshold": 0.5,
            "overlap_policy": None,
        }
        for number, count in enumerate(COUNTS)
    ]


def sent(builder: PromptBuilder, case: dict[str, Any], threshold: float) -> Sent:
    """Return what the engine gets for a text."""
    schema = read(case["schema"])
    prompt = builder.schema(schema)
    pieces = builder.pieces(splitter.split(splitter.ended(case["text"])).tokens)
    tokens, words = builder.build(prompt, pieces)
    return tokens, item_of(schema, prompt, words, threshold)


@dataclass
class Checkpoint:
    """A checkpoint as it was published, and what is converted from it.

    Attributes:
        counting_layer: Which of the three it has.
        source: The published files.
        served: The model folder, what the library computed, and the engine.
        builder: Makes prompts.
    """

    counting_layer: str
    source: Path
    served: Served
    builder: PromptBuilder

    @cached_property
    def expected(self) -> list[dict[str, Any]]:
        """What the library computes for ``cases``."""
        found: list[dict[str, Any]] = library_answer("gliner2", f"{LIBRARY}:outputs", self.source, cases())
        return found

    def answers(self, prompts: Sequence[Sent]) -> list[Output]:
        """Return what the pooler finds for prompts that the engine gets together."""
        from encoder_plugins.serving.engine import pooling_params

        outputs = self.served.running.engine.encode(
            [{"prompt_token_ids": tokens} for tokens, _ in prompts],
            [pooling_params(Prompt(token_ids=[], parameters=payload.encode(item)), PLUGIN.task) for _, item in prompts],
            pooling_task=PLUGIN.task,
            use_tqdm=False,
        )
        return [
            payload.decode_output(output.outputs.data, item) for output, (_, item) in zip(outputs, prompts, strict=True)
        ]


def converted(counting_layer: str, folder: Path, running: Running, dtype: str = "float32") -> Checkpoint:
    """Build and convert a checkpoint, and let the library answer the cases."""
    source = gliner2.build(folder / "published", counting_layer=counting_layer)
    model = folder / "model"
    model.mkdir()
    CHECKPOINT.check(source, {})
    CHECKPOINT.convert(source, {}, model)
    wanted = [case for case in parity_cases.cases() if case["id"] in CASES]
    assert len(wanted) == len(CASES)
    recorded: Recording = library_answer("gliner2", f"{LIBRARY}:record", source, wanted)
    reference = Reference(
        artifact="", digest="", plugin=PLUGIN.name, cases=tuple(recorded.cases), expected=recorded.outputs
    )
    served = Served(PLUGIN, reference, model, folder / "mutants", dtype, None, running)
    return Checkpoint(counting_layer, source, served, PromptBuilder(Tokenizer.from_file(str(model / "tokenizer.json"))))


@pytest.fixture(scope="module", autouse=True)
def variables() -> Iterator[None]:
    """What an engine in this process needs of the environment."""
    with environment():
        yield


@pytest.fixture(scope="module")
def running() -> Running:
    """The engine of float32."""
    return Running(LONGEST)


@pytest.fixture(scope="module", params=gliner2.COUNTING_LAYERS)
def published(request: pytest.FixtureRequest, running: Running, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A checkpoint of each counting layer; the engine has its model."""
    found = converted(request.param, tmp_path_factory.mktemp(request.param), running)
    found.served.engine(found.served.model)
    return found


def dense(output: Output, item: Item, steps: Sequence[int]) -> list[np.ndarray]:
    """Return every logit of each span task, `[steps, fields, words, widths]`, from candidates of which nothing is left out."""
    tables = [
        np.full((count, len(span.fields), len(item.words), 8), -np.inf, np.float32)
        for count, span in zip(steps, item.spans, strict=True)
    ]
    for (task, step, field, first, width), logit, more in zip(
        output.places.tolist(), output.logits.tolist(), output.attributes.tolist(), strict=True
    ):
        tables[task][step, field, first, width] = logit
        if number := item.spans[task].attributes:
            tables[task][step, -number:, first, width] = more
    return tables


@pytest.mark.engine
def test_answers_are_those_of_the_library(published: Checkpoint) -> None:
    verdict = published.served.verdict(published.served.model)
    assert (verdict.result, verdict.cases) == ("Passed", len(CASES)), verdict


@pytest.mark.engine
def test_counts_and_logits_are_those_of_the_library(published: Checkpoint, record_property: Any) -> None:
    prompts = [sent(published.builder, case, 0.0) for case in cases()]
    worst = {"counts": 0.0, "spans": 0.0, "classes": 0.0}
    for (tokens, item), output, wanted in zip(prompts, published.answers(prompts), published.expected, strict=True):
        assert tokens == wanted["tokens"]
        assert item.words.tolist() == wanted["positions"]
        assert output.counts.tolist() == wanted["counts"].tolist()
        worst["counts"] = max(worst["counts"], _largest(output.count_logits.numpy() - wanted["count_logits"]))
        classes = torch.cat([torch.zeros(0), *output.classes]).numpy()
        worst["classes"] = max(worst["classes"], _largest(classes - wanted["classes"]))
        steps = [0 if found is None else len(found) for found in wanted["spans"]]
        for ours, theirs in zip(dense(output, item, steps), wanted["spans"], strict=True):
            if theirs is not None:
                assert (np.isfinite(ours) == np.isfinite(theirs)).all()
                inside = np.isfinite(theirs)
                worst["spans"] = max(worst["spans"], _largest(ours[inside] - theirs[inside]))
    record_property("worst", worst)
    assert max(worst.values()) <= EXACT, worst


def _largest(values: np.ndarray) -> float:
    return float(np.abs(values).max(initial=0.0))


@pytest.mark.engine
def test_candidates_are_those_above_their_fields_threshold(published: Checkpoint) -> None:
    found = 0
    for case, wanted in zip(cases(), published.expected, strict=True):
        tokens, item = sent(published.builder, case, 0.5)
        for span in item.spans:
            # fields of one task with thresholds of their own
            span.thresholds[:] = np.linspace(0.3, 0.7, len(span.fields), dtype=np.float32)
        (output,) = published.answers([(tokens, item)])
        places = {tuple(place) for place in output.places.tolist()}
        assert len(places) == len(output.places)
        for task, (span, logits) in enumerate(zip(item.spans, wanted["spans"], strict=True)):
            of_task = {place[1:] for place in places if place[0] == task}
            if logits is None:
                assert not of_task
                continue
            probable = torch.sigmoid(torch.from_numpy(logits)).numpy()
            far = np.abs(probable - span.thresholds[:, None, None]) > 1e-5
            above = probable >= span.thresholds[:, None, None]
            if span.attributes:
                far, above = far[:, : -span.attributes], above[:, : -span.attributes]
            assert {tuple(place) for place in np.argwhere(above & far).tolist()} <= of_task
            assert not {tuple(place) for place in np.argwhere(~above & far).tolist()} & of_task
            found += len(of_task)
    assert found > 50


@pytest.mark.engine
def test_an_answer_is_the_same_in_any_company(published: Checkpoint) -> None:
    prompts = [sent(published.builder, case, 0.3) for case in cases()]
    alone = [published.answers([prompt])[0] for prompt in prompts]
    assert sum(len(output.places) for output in alone) > 50
    order = np.random.default_rng(0).permutation(len(prompts)).tolist()
    for company in (list(range(len(prompts))), order, [*order, *reversed(order)]):
        for number, output in zip(company, published.answers([prompts[number] for number in company]), strict=True):
            expected = alone[number]
            assert output.places.tolist() == expected.places.tolist()
            # a batch of another size adds up in another order
            for ours, theirs in (
                (output.count_logits, expected.count_logits),
                (output.logits, expected.logits),
                (output.attributes, expected.attributes),
                *zip(output.classes, expected.classes, strict=True),
            ):
                torch.testing.assert_close(ours, theirs, atol=EXACT, rtol=0.0)


@pytest.mark.engine
def test_what_is_no_request_gets_an_empty_answer_beside_others(published: Checkpoint) -> None:
    tokens, item = sent(published.builder, cases()[5], 0.5)
    (expected,) = published.answers([(tokens, item)])
    # positions that are not those of the text: the pooler leaves it out, and its table has no row to decode
    far = Item(np.array([10_000], np.int32), (), ())
    empty, again = published.answers([(tokens, far), (tokens, item)])
    assert not len(empty.places)
    assert again.places.tolist() == expected.places.tolist()


def test_ten_mistakes_are_known() -> None:
    known = {mutant.name for layer in gliner2.COUNTING_LAYERS for mutant in conversion_mutants.of(layer)}
    assert len(known) >= 10


@pytest.mark.engine
def test_no_mistake_in_conversion_passes(published: Checkpoint) -> None:
    check(published.served, conversion_mutants.of(published.counting_layer))


@pytest.mark.engine
def test_the_sound_model_passes_in_bfloat16(tmp_path: Path) -> None:
    check(converted("count_lstm_v2", tmp_path, Running(LONGEST), "bfloat16").served, [])


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.parametrize("layer", gliner2.COUNTING_LAYERS)
def test_no_mistake_in_conversion_passes_in_bfloat16(layer: str, tmp_path: Path) -> None:
    check(converted(layer, tmp_path, Running(LONGEST), "bfloat16").served, conversion_mutants.of(layer))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layer", gliner2.COUNTING_LAYERS)
def test_no_mistake_in_conversion_passes_on_a_gpu(layer: str, dtype: str, tmp_path: Path) -> None:
    check(converted(layer, tmp_path, Running(LONGEST), dtype).served, conversion_mutants.of(layer))
