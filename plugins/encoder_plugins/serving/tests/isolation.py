"""`python isolation.py FOLDER RUNNER`: sends each prepared artifact below FOLDER requests in many ways, and prints how far answers differ.

A process of its own, since the model runner (`v1`, `v2`) is chosen by the environment that vLLM is imported in. The engine
takes one step at a time, so that requests come while others are in flight, and batches hold parts of several requests.
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

from encoder_plugins.errors import WrongAnswer
from encoder_plugins.inputs import body as bodies
from encoder_plugins.parity import verdict

SEED = 3
# enough of each, and few enough for a CPU's interpreter
CASES = 12
FEW = 5
# texts that one case may be
HEAVIEST = 8
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# a second of a CPU for each text
INTERPRETED_CASES = 4


class Engine:
    """A real engine in this process, and its plugin's processor."""

    def __init__(self, artifact: Path) -> None:
        from encoder_plugins import catalog
        from encoder_plugins.offline.worker import EngineLoop, start
        from encoder_plugins.plugin import resolve
        from encoder_plugins.serving import command, entrypoint, limits
        from encoder_plugins.serving.settings import Settings
        from encoder_plugins.serving.tuning import Tuning

        self.reference = verdict.read_reference(artifact)
        plugin = catalog.get(self.reference.plugin)
        self.parity = resolve(plugin.parity)
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

    def add(self, data: Mapping[str, Any]) -> int:
        """Give a request to the engine; returns its number."""
        number = next(self._numbers)
        self.loop.take(number, bodies.encode(data))
        return number

    def answers(self, numbers: Iterable[int]) -> list[Any]:
        """Step until all is done; return the answers to ``numbers``."""
        wanted = list(numbers)
        while not all(number in self._answers for number in wanted):
            self.loop.step()
        found = []
        for number in wanted:
            kind, value = self._answers.pop(number)
            assert kind == "answer", value
            found.append(json.loads(value[0])["data"])
        return found


def chosen(engine: Engine) -> list[Mapping[str, Any]]:
    """Return some cases that can be asked in one request, always the same; short ones where kernels are interpreted."""
    heaviest = 1 if INTERPRETED else HEAVIEST
    groups: dict[object, list[Mapping[str, Any]]] = {}
    for case in sorted(engine.reference.cases, key=lambda case: len(json.dumps(case))):
        if engine.parity.weight(case) <= heaviest:
            groups.setdefault(engine.parity.group(case), []).append(case)
    largest = max(groups.values(), key=len)
    if INTERPRETED:
        # from the shorter half, but not the shortest only: those may all find nothing
        shorter = largest[: max(INTERPRETED_CASES, len(largest) // 2)]
        return shorter[:: len(shorter) // INTERPRETED_CASES][:INTERPRETED_CASES]
    return random.Random(SEED).sample(largest, min(CASES, len(largest)))


def isolation(engine: Engine) -> dict[str, Any]:
    """Ask in every way; return how far answers are from those given alone, and from the library's, by way."""
    parity, cases = engine.parity, chosen(engine)
    order = random.Random(SEED).sample(range(len(cases)), len(cases))

    def add(*places: int) -> tuple[tuple[int, ...], int]:
        return places, engine.add(parity.data([cases[place] for place in places], "float"))

    def answered(asked: Sequence[tuple[tuple[int, ...], int]]) -> list[tuple[int, Any]]:
        answers = engine.answers(number for _, number in asked)
        return [
            pair
            for (places, _), answer in zip(asked, answers, strict=True)
            for pair in zip(places, parity.outputs(answer, [cases[place] for place in places], "float"), strict=True)
        ]

    alone = dict(pair for place in range(len(cases)) for pair in answered([add(place)]))
    ways = {
        "batched": answered([add(*range(len(cases)))]),
        "shuffled": answered([add(*order)]),
        "side by side": answered([add(place) for place in order]),
    }
    # requests come while others are in flight; each is between different neighbours, some of them twice
    asked = []
    for count, place in enumerate([*order[::-1], *order[:FEW]]):
        asked.append(add(place))
        if count % 3 == 2:
            engine.loop.step()
    ways["overlapping"] = answered(asked)
    tolerance = parity.tolerances["float32"]
    findings = {
        way: [compared(engine, way, cases[place], got) for place, got in [*alone.items(), *found]]
        for way, found in ways.items()
    }
    return {
        "cases": len(cases),
        "differ": len({json.dumps(plain(got)) for got in alone.values()}),
        "from alone": {
            way: max(
                distance(plain(got), plain(alone[place]), thresholds(parity.data([cases[place]], "float")))
                for place, got in found
            )
            for way, found in ways.items()
        },
        "from the library": {
            way: verdict.judge(found, tolerance, engine.reference, {}).message
            for way, found in findings.items()
            if verdict.judge(found, tolerance, engine.reference, {}).result != "Passed"
        },
    }


def compared(engine: Engine, way: str, case: Mapping[str, Any], got: Any) -> verdict.Finding:
    """Return how far an answer is from the library's."""
    try:
        found = engine.parity.compare(case, got, engine.reference.expected[case["id"]])
    except WrongAnswer as error:
        return verdict.Finding(case=case["id"], asked=way, wrong=str(error))
    return verdict.Finding(case=case["id"], asked=way, metrics=found.metrics)


def thresholds(data: Mapping[str, Any]) -> list[float]:
    """Return the numbers of a request that an answer may be cut off at."""
    return [value for value in data.values() if isinstance(value, float)]


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


def distance(one: Any, other: Any, borders: Sequence[float]) -> float:
    """Return the largest difference of two numbers in the same place; infinite where anything else differs.

    Elements of lists belong together by what in them is no number, since rounding may swap two that are equally good. What
    only one list has counts by how far its numbers are from a threshold of the request, which rounding may cross.
    """
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other)
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return max((distance(one[name], other[name], borders) for name in one), default=0.0)
    if isinstance(one, list) and isinstance(other, list):
        if all(isinstance(element, dict) for element in [*one, *other]):
            first, second = by_what_they_are(one), by_what_they_are(other)
            single = [from_border({**first, **second}[key], borders) for key in first.keys() ^ second.keys()]
            both = [distance(first[key], second[key], borders) for key in first.keys() & second.keys()]
            return max([*single, *both], default=0.0)
        if len(one) == len(other):
            return max((distance(*pair, borders) for pair in zip(one, other, strict=True)), default=0.0)
    return 0.0 if one == other else float("inf")


def by_what_they_are(elements: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return elements by everything in them that is no number with a fraction; one that is there again is numbered."""
    found: dict[str, dict[str, Any]] = {}
    for element in elements:
        key = json.dumps({name: value for name, value in element.items() if not isinstance(value, float)})
        found[f"{key} {sum(known.startswith(key) for known in found)}"] = element
    return found


def from_border(element: Any, borders: Sequence[float]) -> float:
    """Return how far the nearest number of an element is from the nearest threshold."""
    numbers = [number for number in element.values() if isinstance(number, float)] if isinstance(element, dict) else []
    return min((abs(number - border) for number in numbers for border in borders), default=float("inf"))


def main() -> None:
    """Ask each artifact; print one JSON line for each."""
    folder, runner = Path(sys.argv[1]), sys.argv[2]
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if runner == "v2" else "0"
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
