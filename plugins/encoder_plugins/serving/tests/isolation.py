"""`python isolation.py FOLDER RUNNER`: sends each prepared artifact below FOLDER many mixes of requests, and prints how far answers differ.

A process of its own, since the model runner (`v1`, `v2`) is chosen by the environment that vLLM is imported in. The engine
is driven step by step, so that requests arrive while others are in flight, and batches hold parts of several requests.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from encoder_checkpoints.sentence import WORDS
from encoder_kernels.tests import interpreter
from encoder_plugins.artifact import reference
from encoder_plugins.errors import WrongAnswer
from encoder_plugins.parity import verdict

SEED = 3
# texts that one case may be
HEAVIEST = 8
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# kinds of cases, and cases of each: enough to mix, and few enough for a CPU; a second for each text where kernels are interpreted
KINDS, OF_EACH = (4, 2) if INTERPRETED else (8, 4)
# characters of a case's text where kernels are interpreted: there, only the long text below is long
SHORT = 250
# times the words of a long text: more than the model takes at once, or, where kernels are interpreted, than one program attends to
LONG = 3 if INTERPRETED else 8
# requests that come a second time
AGAIN = 5
# kinds of GLiNER requests that no parity case is: long beside short, many labels beside one, class probabilities, chunks, nothing found
GLINER: Sequence[Mapping[str, Any]] = (
    {"text": " ".join(WORDS[:4]), "labels": ["person"], "threshold": 0.2, "return_class_probs": True},
    {
        "text": " ".join(WORDS),
        "labels": [f"kind {number}" for number in range(20)],
        "threshold": 0.3,
    },
    {
        "text": " ".join(WORDS * LONG),
        "labels": ["person", "city"],
        "threshold": 0.3,
        "overflow": "chunk",
    },
    {
        "texts": ["Ada .", " ", " ".join(WORDS * 2)],
        "labels_per_text": [["city"], ["person"], ["person", "city", "date"]],
    },
    {"text": "in , and on", "labels": ["person"], "threshold": 1.0},
)
# of token-level models, too: spans of the client, groups of labels, candidates with ids, entities in chunks, and nothing found
BY_WORD: Sequence[Mapping[str, Any]] = (
    {
        "text": " ".join(WORDS[:4]),
        "labels": ["person", "city"],
        "threshold": 0.0,
        "input_spans": [[{"start": 0, "end": 12}, {"start": 0, "end": 3}]],
    },
    {
        "text": " ".join(WORDS),
        "labels": [f"kind {number}" for number in range(20)],
        "threshold": 0.3,
        "max_labels": 7,
    },
    {
        "text": " ".join(WORDS * LONG),
        "labels": ["person", "city"],
        "threshold": 0.3,
        "overflow": "chunk",
        "multi_label": True,
    },
    {
        "texts": ["Ada .", " ", " ".join(WORDS * 2)],
        "candidates_per_text": [
            [{"id": "1", "label": "city"}],
            [{"id": "2", "label": "person"}],
            [{"id": "3", "label": "person"}, {"id": "4", "label": "city"}, {"id": "5", "label": "date"}],
        ],
        "flat_ner": False,
    },
    {"text": "in , and on", "labels": ["person"], "threshold": 1.0},
)
# of models whose labels have an encoder of their own: the same, but for groups of labels, which they need not be read in
BY_WORD_APART: Sequence[Mapping[str, Any]] = tuple(
    {name: value for name, value in data.items() if name != "max_labels"} for data in BY_WORD
)
# texts to be scored, of any length, one of them without a token that has a row in most checkpoints
SCORED = (" ".join(WORDS[:3]), " ".join(WORDS), "?", " ".join(WORDS * 2), "Babbage")
# of every retriever: one query and several, all documents and the best ones
SCORES: Sequence[Mapping[str, Any]] = (
    {"query": SCORED[0], "documents": SCORED},
    {"queries": [SCORED[1], "London", SCORED[4]], "documents": SCORED[:3], "top_k": 2},
    {"query": " ".join(WORDS * LONG), "documents": [" ".join(WORDS * LONG), SCORED[4]], "top_k": 1},
)
# of those with a vector for each token: rows of queries and documents, whole, cut and merged
ROWS: Sequence[Mapping[str, Any]] = (
    *SCORES,
    {"texts": [SCORED[3], SCORED[0], SCORED[1]], "input_type": "document", "pool_factor": 2},
    {"texts": SCORED[:2], "input_type": "query", "dimensions": 8, "return_tokens": True},
    {"text": SCORED[3], "input_type": "document", "dimensions": 16},
    {"text": SCORED[1], "input_type": "document", "dimensions": 8, "pool_factor": 3},
)
# of those with one vector: both sides of retrieval, whole and cut
VECTORS: Sequence[Mapping[str, Any]] = (
    *SCORES,
    {"texts": SCORED, "input_type": "document"},
    {"texts": SCORED[:2], "input_type": "query", "dimensions": 8, "normalize": True},
)
MATRYOSHKA: Sequence[Mapping[str, Any]] = (
    *VECTORS[:-1],
    {"texts": SCORED[:2], "input_type": "document", "titles": [None, "London"], "dimensions": 128},
    {"text": SCORED[1], "input_type": "query", "dimensions": 128},
    {"text": SCORED[1], "prompt": "", "normalize": False},
)
OF_KINDS = {
    "_gliner": GLINER,
    "_gliner_rerank": BY_WORD,
    "_gliner_linker": BY_WORD_APART,
    "colbert": ROWS,
    "sentence_transformer": VECTORS,
    "embeddinggemma": MATRYOSHKA,
}


class Engine:
    """A real engine in this process, and its plugin's processor."""

    def __init__(self, artifact: Path) -> None:
        from encoder_plugins import catalog
        from encoder_plugins.offline.worker import EngineLoop, start
        from encoder_plugins.plugin import resolve
        from encoder_plugins.serving import command, entrypoint, limits
        from encoder_plugins.serving.settings import Settings
        from encoder_plugins.serving.tuning import Tuning

        self.reference = reference.read(artifact)
        plugin = catalog.get(self.reference.plugin)
        self.parity = resolve(plugin.parity)
        self.variant = self.parity.variants()[0]
        values = limits.defaults(plugin)
        service = command.Service(
            artifact=artifact,
            name=plugin.name,
            port=0,
            accelerator="cpu",
            limits=values,
            dtype="float32",
            arguments=("--max-num-seqs", "8"),
        )
        checkpoint = entrypoint.engine_settings(plugin, service)
        self.engine = start(command.engine_arguments(service, plugin, checkpoint, Tuning(engines=1, api_servers=1)))
        settings = Settings(plugin=plugin.name, limits=values)
        self.loop = EngineLoop(self.engine, settings, self._answered, parsers=0)
        self._numbers = itertools.count()
        self._answers: dict[int, tuple[str, Any]] = {}

    def _answered(self, number: int, kind: str, value: Any) -> None:
        self._answers[number] = (kind, value)

    def add(self, body: Mapping[str, Any]) -> int:
        """Give a request to the engine; return its number."""
        number = next(self._numbers)
        self.loop.take(number, json.dumps(body).encode())
        return number

    def step(self) -> None:
        """Run one scheduler step."""
        self.loop.step()

    def answers(self, numbers: Iterable[int]) -> list[bytes]:
        """Step until ``numbers`` are answered; return the bodies of their responses."""
        wanted = list(numbers)
        while not all(number in self._answers for number in wanted):
            self.step()
        found = []
        for number in wanted:
            kind, value = self._answers.pop(number)
            assert kind == "answer", value
            found.append(value[0])
        return found


def chosen(engine: Engine) -> list[list[Mapping[str, Any]]]:
    """Return some cases of each kind, always the same: those of one kind can be sent in one request."""
    heaviest = 1 if INTERPRETED else HEAVIEST
    kinds: dict[object, list[Mapping[str, Any]]] = {}
    for case in sorted(engine.reference.cases, key=lambda case: len(json.dumps(case))):
        if engine.parity.weight(case) <= heaviest and (not INTERPRETED or is_short(case)):
            kinds.setdefault(engine.parity.group(case, engine.variant), []).append(case)
    by_size = sorted(kinds.values(), key=len, reverse=True)
    largest, scored = by_size[:KINDS], [cases for cases in by_size if cases[0].get("documents")]
    # each is a kind of its own, and scores have bounds of their own
    if scored and scored[0] not in largest:
        largest[-1] = scored[0]
    # evenly from the shortest to the longest; where kernels are interpreted from the shorter half
    spread = [cases[: max(OF_EACH, len(cases) // 2)] if INTERPRETED else cases for cases in largest]
    return [cases[:: -(-len(cases) // OF_EACH)] for cases in spread]


def is_short(case: Mapping[str, Any]) -> bool:
    """Return whether a case is an image, or has a word and not too many."""
    text = case.get("text")
    return text is None or 0 < len(text.strip()) <= SHORT


def isolation(engine: Engine) -> dict[str, Any]:
    """Send every mix; return how far answers are from those given alone, and from the library's, by mix."""
    parity, kinds = engine.parity, chosen(engine)
    cases = [case for kind in kinds for case in kind]
    numbers = {case["id"]: number for number, case in enumerate(cases)}
    order = random.Random(SEED).sample(range(len(cases)), len(cases))
    kind = engine.reference.plugin
    requests = next((requests for ending, requests in OF_KINDS.items() if kind.endswith(ending)), ())
    further = [{"data": data} for data in requests]

    def body(*members: int) -> dict[str, Any]:
        found: dict[str, Any] = parity.body([cases[number] for number in members], engine.variant)
        return found

    def add(*members: int) -> tuple[tuple[int, ...], int]:
        return members, engine.add(body(*members))

    def answered(sent: Sequence[tuple[tuple[int, ...], int]]) -> list[tuple[int, Any]]:
        answers = engine.answers(number for _, number in sent)
        return [
            pair
            for (members, _), answer in zip(sent, answers, strict=True)
            for pair in zip(
                members, parity.outputs(answer, [cases[number] for number in members], engine.variant), strict=True
            )
        ]

    def batched(shuffled: bool) -> list[tuple[int, Any]]:
        sent = []
        for kind in kinds:
            members = [numbers[case["id"]] for case in kind]
            sent.append(add(*(random.Random(SEED).sample(members, len(members)) if shuffled else members)))
        return answered(sent)

    alone = dict(pair for number in range(len(cases)) for pair in answered([add(number)]))
    further_alone = [json.loads(engine.answers([engine.add(data)])[0]) for data in further]
    mixes = {"batched": batched(shuffled=False), "shuffled": batched(shuffled=True)}
    sent, also = [], []
    for count, number in enumerate(order):
        sent.append(add(number))
        if count < len(further):
            also.append((count, engine.add(further[count])))
    also += [(count, engine.add(further[count])) for count in range(len(order), len(further))]
    mixes["side by side"] = answered(sent)
    # answered above already: the engine finishes everything that is in flight
    beside = [(count, json.loads(engine.answers([number])[0])) for count, number in also]
    # requests arrive while others are in flight; each has other neighbours, some come twice
    sent, also = [], []
    for count, number in enumerate([*order[::-1], *order[:AGAIN]]):
        sent.append(add(number))
        if count % 4 == 1 and further:
            also.append((count % len(further), engine.add(further[count % len(further)])))
        if count % 3 == 2:
            engine.step()
    mixes["overlapping"] = answered(sent)
    beside += [(count, json.loads(engine.answers([number])[0])) for count, number in also]
    tolerance = parity.tolerances["float32"]
    findings = {
        mix: within(engine, mix, [(cases[number], got) for number, got in [*alone.items(), *found]])
        for mix, found in mixes.items()
    }
    return {
        "cases": len(cases),
        "kinds": len(kinds) + len(further),
        "differ": len({json.dumps(plain(got)) for got in alone.values()}),
        "from alone": {
            mix: max(distance(plain(got), plain(alone[number]), thresholds(body(number))) for number, got in found)
            for mix, found in mixes.items()
        },
        "further from alone": max(
            (distance(plain(got), plain(further_alone[count]), thresholds(further[count])) for count, got in beside),
            default=0.0,
        ),
        "from the library": {
            mix: verdict.judge(found, tolerance, engine.reference, {}).message
            for mix, found in findings.items()
            if verdict.judge(found, tolerance, engine.reference, {}).result != "Passed"
        },
    }


def within(engine: Engine, mix: str, found: Sequence[tuple[Mapping[str, Any], Any]]) -> list[verdict.Finding]:
    """Return how far answers are from the library's, one by one and together."""
    findings = [compared(engine, mix, case, got) for case, got in found]
    return [*findings, *verdict.pooled(engine.parity, mix, findings)]


def compared(engine: Engine, mix: str, case: Mapping[str, Any], got: Any) -> verdict.Finding:
    """Return how far an answer is from the library's."""
    try:
        found = engine.parity.compare(case, got, engine.reference.expected[case["id"]])
    except WrongAnswer as error:
        return verdict.Finding(case=case["id"], sent=mix, wrong=str(error))
    return verdict.Finding(case=case["id"], sent=mix, metrics=found.metrics, samples=found.samples)


def thresholds(body: Mapping[str, Any]) -> list[float]:
    """Return the numbers of a request that an answer may be cut off at."""
    return [value for value in body["data"].values() if isinstance(value, float)]


def plain(value: Any) -> Any:
    """Return an answer as JSON has it."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value


def distance(one: Any, other: Any, cuts: Sequence[float]) -> float:
    """Return the largest difference of two numbers at the same path; infinite where anything else differs.

    A number above 1 is compared by its ratio, and a list of numbers in units of the largest one.

    Elements of lists are matched by what in them is not a fraction, since rounding may swap two of equal score. An element that
    only one list has counts by how far its numbers are from a threshold of the request, which rounding may cross.
    """
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) / max(1.0, abs(one), abs(other))
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return max((distance(one[name], other[name], cuts) for name in one), default=0.0)
    if isinstance(one, list) and isinstance(other, list):
        if one and len(one) == len(other) and all(isinstance(element, float) for element in [*one, *other]):
            farthest: float = max(abs(pair[0] - pair[1]) for pair in zip(one, other, strict=True))
            largest: float = max(1.0, *map(abs, one), *map(abs, other))
            return farthest / largest
        if all(isinstance(element, dict) for element in [*one, *other]):
            first, second = by_content(one), by_content(other)
            single = [from_cut({**first, **second}[key], cuts) for key in first.keys() ^ second.keys()]
            both = [distance(first[key], second[key], cuts) for key in first.keys() & second.keys()]
            return max([*single, *both], default=0.0)
        if len(one) == len(other):
            return max((distance(*pair, cuts) for pair in zip(one, other, strict=True)), default=0.0)
    return 0.0 if one == other else float("inf")


def by_content(elements: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return elements by all of their content but fractions and what is nested; repeated ones are numbered."""
    found: dict[str, dict[str, Any]] = {}
    for element in elements:
        key = json.dumps({name: value for name, value in element.items() if not isinstance(value, float | dict | list)})
        found[f"{key} {sum(known.startswith(key) for known in found)}"] = element
    return found


def from_cut(element: Any, cuts: Sequence[float]) -> float:
    """Return how far the nearest number of an element is from the nearest threshold; infinite where there is none."""
    numbers = [number for number in element.values() if isinstance(number, float)] if isinstance(element, dict) else []
    return min((abs(number - cut) for number in numbers for cut in cuts), default=float("inf"))


def enlarge_blocks() -> None:
    """Let an interpreted program attend to more at once: it costs by its instructions, not by its numbers."""
    from encoder_kernels.disentangled_attention import kernel as disentangled
    from encoder_kernels.relative_bias_attention import kernel as relative

    def enlarged(config: Mapping[str, int]) -> dict[str, int]:
        return {name: 128 if name.startswith("BLOCK") else value for name, value in config.items()}

    with_positions, with_bias = disentangled.settings, relative.settings
    disentangled.settings = lambda *arguments: enlarged(with_positions(*arguments))
    relative.settings = lambda *arguments: enlarged(with_bias(*arguments))


def place_patches_by_torch() -> None:
    """Let vLLM's vision tower place patches as it does without Triton: its kernel has a program for each patch of an image.

    It sees one image at a time, so that no neighbour can change it.
    """
    from vllm.model_executor.models import qwen3_vl

    qwen3_vl.triton_pos_embed_interpolate = qwen3_vl.pos_embed_interpolate_native


def main() -> None:
    """Send the requests to each artifact; print one JSON line for each."""
    folder, runner = Path(sys.argv[1]), sys.argv[2]
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if runner == "v2" else "0"
    if INTERPRETED:
        interpreter.reduce_cost()
        enlarge_blocks()
        place_patches_by_torch()
    for artifact in sorted(path for path in folder.iterdir() if (path / "MANIFEST.json").is_file()):
        start = time.monotonic()
        try:
            engine = Engine(artifact)
            used = engine.engine.vllm_config.use_v2_model_runner
            result = {"runner": "v2" if used else "v1", **isolation(engine)}
            # the next engine wants the process's state as it was
            del engine
            gc.collect()
        except Exception as error:  # one plugin's failure is not another's
            import traceback

            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {error}"}
        print(
            json.dumps({"plugin": artifact.name, "seconds": round(time.monotonic() - start, 1), **result}), flush=True
        )


if __name__ == "__main__":
    main()
