"""Requests of the parity check for structured extraction, and how close answers must be.

Standard library and numpy only: the parity Job runs it without torch or vLLM. ``cases`` says what is sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encoder_plugins.artifact.cases import Inputs
from encoder_plugins.errors import WrongAnswer
from encoder_plugins.families.gliner2 import cases
from encoder_plugins.families.gliner2.cases import OPTIONS
from encoder_plugins.parity.protocol import Arrays, Case, Compared, Threshold, Tolerance, Variant

POOLING = Variant("pooling")
# scores of the library in bfloat16 that are closer to those in float32 than this are so by chance
SMALLEST_NOISE = 1e-3
# the likeliest two counts of a task may change places where they are closer than this many times what the library's logits of counts
# move in bfloat16: both may move, and an engine rounds at other places
CLEAR_COUNT = 4

_SUMS = "24 bits of mantissa: the engine only sums in another order. 2.5e-5 of a score is 1e-4 of a logit, where a score changes most"
_SAME = "counts and decisions of float32 are the library's own, but for a tie that differs by less than a rounding"
_NOISE = (
    "in units of what the library itself loses from float32 to bfloat16 on the same values: an engine that rounds at other"
    " places loses about as much, 0.8 to 1.4 times in bfloat16 on a CPU, and a mistake adds to it"
)
_CAP = "no rounding of a sound checkpoint moves a score this far, whatever the library itself loses: 0.23 was measured in bfloat16"
# fp8 of vLLM rounds weights and inputs of the encoder's linear layers to e4m3, which has 4 bits of mantissa
_EIGHT = (
    "in units of what the library itself loses from float32 to bfloat16, which has 8 bits of mantissa to the 4 of e4m3: a rounding is 16"
    " times as large"
)
_EIGHT_CAP = "as for deberta_gliner, whose checkpoints with random weights came to 0.48 to 0.67"
_MISSING_LABEL = "distance of missing values to the threshold"
_MISSING = (
    "a value that one side lacks has another score there, different by at least this; where rounding does not turn the task's count."
    " 0.06 was measured in bfloat16"
)
_LABELS = "the head of labels computes in float32 here, and has no rounding but that of the encoder's rows: 0.05 was measured in bfloat16"

Key = tuple[Any, ...]
"""Where a value stands in an answer: kind, name, then what is its own."""

Values = dict[Key, float]

# kinds whose tasks have several instances, each with a number in its values' keys
_NUMBERED = ("relations", "structures")


class Extraction:
    """The plugin's side of the parity check; ``encoder_plugins.parity.protocol.Parity`` says what each part is for.

    A value is a mention, a label, or a value of a field, at its place in the answer. `score_max` is the largest difference of the score of
    a value that both sides have, and `score_p50` and `score_p99` are quantiles over all cases that measure scores. `missing_max` is
    how far the score of a value that only one side has is from the threshold; `counts` is the share of tasks with another number of
    instances, or whose values are missing altogether. `answers` is the share of answers with other values than the library's. `noise_p50` and
    `noise_p99` are quantiles in units of what the library loses in bfloat16.
    """

    tolerances: Mapping[str, Tolerance] = {
        "float32": (
            Threshold("score_max", at_most=2.5e-5, label="max |Δscore|", reason=_SUMS),
            Threshold("score_p99", at_most=1.5e-5, label="p99 |Δscore|", reason=_SUMS),
            Threshold("score_p50", at_most=5e-6, label="median |Δscore|", reason=_SUMS),
            Threshold("missing_max", at_most=2.5e-5, label="distance of missing values to the threshold", reason=_SUMS),
            Threshold("answers", at_most=0.0, label="answers with other values", reason=_SAME),
            Threshold("counts", at_most=0.0, label="tasks with another count", reason=_SAME),
        ),
        "float16": (
            Threshold("score_max", at_most=0.06, label="max |Δscore|", reason=_CAP),
            Threshold("noise_p99", at_most=0.5, label="p99 |Δscore| over the library's own in bfloat16", reason=_NOISE),
            Threshold("noise_p50", at_most=0.5, label="median |Δscore|, likewise", reason=_NOISE),
            Threshold("missing_clear", at_most=0.06, label=_MISSING_LABEL, reason=_MISSING),
            Threshold("label_max", at_most=0.02, label="max |Δscore| of labels", reason=_LABELS),
        ),
        "bfloat16": (
            Threshold("score_max", at_most=0.3, label="max |Δscore|", reason=_CAP),
            Threshold("noise_p99", at_most=2.0, label="p99 |Δscore| over the library's own in bfloat16", reason=_NOISE),
            Threshold("noise_p50", at_most=2.0, label="median |Δscore|, likewise", reason=_NOISE),
            Threshold("missing_clear", at_most=0.3, label=_MISSING_LABEL, reason=_MISSING),
            Threshold("label_max", at_most=0.1, label="max |Δscore| of labels", reason=_LABELS),
        ),
        "fp8": (
            Threshold("score_max", at_most=0.8, label="max |Δscore|", reason=_EIGHT_CAP),
            Threshold(
                "noise_p99", at_most=16.0, label="p99 |Δscore| over the library's own in bfloat16", reason=_EIGHT
            ),
            Threshold("noise_p50", at_most=16.0, label="median |Δscore|, likewise", reason=_EIGHT),
            Threshold("missing_clear", at_most=0.8, label=_MISSING_LABEL, reason=_EIGHT_CAP),
            Threshold("label_max", at_most=0.8, label="max |Δscore| of labels", reason=_EIGHT_CAP),
        ),
    }

    def cases(self, folder: Path, inputs: Inputs) -> list[Case]:
        """Return the built-in cases, and the user's own."""
        del folder
        built_in = cases.cases()
        return [*built_in, *cases.user_cases(inputs, built_in)]

    def variants(self) -> Sequence[Variant]:
        """Return the one form that requests of extraction have."""
        return (POOLING,)

    def group(self, case: Case, variant: Variant) -> object:
        """Return what cases must share to be sent in one request."""
        return tuple(case[name] for name in OPTIONS)

    def weight(self, case: Case) -> int:
        """Return as how many texts a case counts."""
        return 1

    def body(self, together: Sequence[Case], variant: Variant) -> dict[str, Any]:
        """Return the request body for cases of one group."""
        first = together[0]
        options = {name: first[name] for name in OPTIONS}
        if len(together) == 1:
            return {"data": {"text": first["text"], "schema": first["schema"], **options}}
        texts, schemas = ([case[name] for case in together] for name in ("text", "schema"))
        return {"data": {"texts": texts, "schemas": schemas, **options}}

    def outputs(self, content: bytes, together: Sequence[Case], variant: Variant) -> list[Any]:
        """Return the result of each case.

        Raises:
            WrongAnswer: The body is not an answer of this plugin's.
        """
        try:
            answer = json.loads(content)["data"]
            if len(together) == 1:
                # one text's answer also says what the request used, as a result among others does not
                return [{name: value for name, value in answer.items() if name != "usage"}]
            results = list(answer["results"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise WrongAnswer(f"the answer holds no results: {error!r}") from None
        if len(results) != len(together):
            raise WrongAnswer(f"the answer has {len(results)} results; the request had {len(together)} texts")
        return results

    def compare(self, case: Case, got: Any, expected: Arrays) -> Compared:
        """Compare one result with the library's.

        Raises:
            WrongAnswer: The result is not one of this schema, or not of this text.
        """
        try:
            found = dict(_served(case, got))
        except (AttributeError, KeyError, TypeError) as error:
            raise WrongAnswer(f"the result is not one of this schema: {error!r}") from None
        wanted, rounded = (dict(_library(case, case[name])) for name in ("answer", "answer_bfloat16"))
        as_numbered = found
        found, rounded = (_renumbered(values, wanted) for values in (found, rounded))
        both = sorted(found.keys() & wanted.keys(), key=repr)
        errors = [abs(found[key] - wanted[key]) for key in both]
        alone = sorted(found.keys() ^ wanted.keys(), key=repr)
        notes = tuple(f"only {'the server' if key in found else 'the library'} has {_named(key)}" for key in alone)
        metrics: dict[str, float] = {"score_max": max(errors)} if errors else {}
        if case["measures"] == "answer":
            # mentions come in an order of their own; others have their number in their key
            orders = [[key for key in one if key[0] == "entities"] for one in (as_numbered, wanted)]
            metrics["answers"] = float(as_numbered.keys() != wanted.keys() or orders[0] != orders[1])
            return Compared(metrics, notes)
        scores = wanted | found
        away = [abs(scores[key] - case["threshold"]) for key in alone]
        metrics["missing_max"] = max(away, default=0.0)
        # a count that rounding turns makes whole records, and the labels of a mention go with it
        clear = _clear_tasks(case["schema"], expected["count_logits"], expected["count_logits_bfloat16"])
        metrics["missing_clear"] = max(
            (one for one, key in zip(away, alone, strict=True) if key[:2] in clear), default=0.0
        )
        labels = [error for error, key in zip(errors, both, strict=True) if key[0] == "classifications"]
        metrics |= {"label_max": max(labels)} if labels else {}
        tasks = [{key[:2] + key[2:3] * (key[0] == "structures") for key in one} for one in (found, wanted)]
        metrics["counts"] = float(len({task[:2] for task in tasks[0] ^ tasks[1]}))
        noisy = [
            (error, abs(rounded[key] - wanted[key])) for key, error in zip(both, errors, strict=True) if key in rounded
        ]
        samples = {
            "error": np.array([error for error, _ in noisy], np.float64),
            "noise": np.array([noise for _, noise in noisy], np.float64),
        }
        return Compared(metrics, notes, samples)

    def summarise(self, samples: Mapping[str, NDArray[np.float64]]) -> Mapping[str, float]:
        """Return quantiles of the score differences of a pass, and their ratio to the library's own in bfloat16."""
        error, noise = samples["error"], samples["noise"]
        if not len(error):
            return {}
        metrics: dict[str, float] = {}
        for name, quantile in (("p50", 0.5), ("p99", 0.99)):
            value, own = float(np.quantile(error, quantile)), float(np.quantile(noise, quantile))
            metrics |= {f"score_{name}": value, f"noise_{name}": value / max(own, SMALLEST_NOISE)}
        return metrics


def _renumbered(values: Values, wanted: Values) -> Values:
    """Return values with their records and relations numbered as those of ``wanted`` that they are most like, in order.

    One without any value above the threshold is left out, and then those behind it have other numbers.
    """
    ours, theirs = _records(values), _records(wanted)
    numbers: dict[Key, int] = {}
    for task, records in ours.items():
        others = theirs.get(task, [])
        # the most that the first records of each side have in common: places, each by how near its two scores are
        common = np.zeros((len(records) + 1, len(others) + 1), np.float64)
        for row, record in enumerate(records):
            for column, other in enumerate(others):
                alike = sum(
                    1 - abs(record[place] - other[place]) for place in sorted(record.keys() & other.keys(), key=repr)
                )
                together = common[row, column] + alike
                common[row + 1, column + 1] = max(together, common[row, column + 1], common[row + 1, column])
        row, column = len(records), len(others)
        while row:
            if column and common[row, column] == common[row, column - 1]:
                column -= 1
                continue
            row -= 1
            if common[row + 1, column] == common[row, column]:
                numbers[(*task, row)] = len(others) + row
            else:
                column -= 1
                numbers[(*task, row)] = column
    return {
        (*key[:2], numbers[key[:3]], *key[3:]) if key[0] in _NUMBERED else key: score for key, score in values.items()
    }


def _records(values: Values) -> dict[Key, list[Values]]:
    """Return the values of each record, by kind and name of its task."""
    found: dict[Key, list[Values]] = {}
    for key, score in values.items():
        if key[0] in _NUMBERED:
            records = found.setdefault(key[:2], [])
            records += [{} for _ in range(key[2] + 1 - len(records))]
            records[key[2]][key[3:]] = score
    return found


def _clear_tasks(schema: Mapping[str, Any], exact: NDArray[np.float32], rounded: NDArray[np.float32]) -> set[Key]:
    """Return kind and name of each task whose count no rounding turns; entities by type, for which any count but 0 is one.

    Args:
        schema: The schema of a case.
        exact: `[tasks, counts]`: the library's logits of counts, by structure, of the entities, by relation.
        rounded: `[tasks, counts]`: those in bfloat16.
    """
    tasks: list[list[Key]] = [[("structures", name)] for name in schema.get("structures") or ()]
    if types := list(schema.get("entities") or ()):
        tasks.append([("entities", name) for name in types])
    tasks += [[("relations", name)] for name in schema.get("relations") or ()]
    noise = float(np.abs(exact - rounded).max(initial=0.0))
    found: set[Key] = set()
    for keys, logits in zip(tasks, exact, strict=True):
        ordered = np.sort(logits)
        margin = abs(logits[0] - logits[1:].max()) if keys[0][0] == "entities" else ordered[-1] - ordered[-2]
        if margin > CLEAR_COUNT * noise:
            found.update(keys)
    return found


def _served(case: Mapping[str, Any], got: Any) -> Iterator[tuple[Key, float]]:
    """Enumerate the values of a result of the server's."""
    for name, mentions in got["entities"].items():
        for mention in mentions:
            yield from _mention(case, ("entities", name), mention, "score")
            for group, labels in (mention.get("attributes") or {}).items():
                for label in labels if isinstance(labels, list) else [labels]:
                    yield ("attributes", name, mention["start"], mention["end"], group, label["label"]), label["score"]
    for name, labels in got["classifications"].items():
        for label in labels:
            yield ("classifications", name, label["label"]), label["score"]
    for name, relations in got["relations"].items():
        for number, relation in enumerate(relations):
            for end in ("head", "tail"):
                yield from _mention(case, ("relations", name, number, end), relation[end], "score")
    for name, records in got["structures"].items():
        for number, record in enumerate(records):
            for field, value in record.items():
                for one in _listed(value):
                    yield from _mention(case, ("structures", name, number, field), one, "score")


def _library(case: Mapping[str, Any], answer: Mapping[str, Any]) -> Iterator[tuple[Key, float]]:
    """Enumerate the values of the library's formatted answer, in the order of the server's."""
    schema = case["schema"]
    groups = schema.get("entity_attributes") or {}
    found = answer.get("entities") or {}
    for name in schema.get("entities") or ():
        for mention in _listed(found.get(name)):
            at = list(_mention(case, ("entities", name), mention, "confidence"))
            yield from at
            for group in groups if at else ():
                for label in _listed(mention.get(group)):
                    key = ("attributes", name, *at[0][0][2:], group, label["label"])
                    yield key, label["confidence"]
    for task in schema.get("classifications") or ():
        for label in _listed(answer[task["task"]]):
            yield ("classifications", task["task"], label["label"]), label["confidence"]
    for name in schema.get("relations") or ():
        for number, relation in enumerate(answer["relation_extraction"].get(name) or ()):
            for end in ("head", "tail"):
                yield from _mention(case, ("relations", name, number, end), relation[end], "confidence")
    for name in schema.get("structures") or ():
        for number, record in enumerate(answer[name] or ()):
            for field, value in record.items():
                for one in _listed(value):
                    yield from _mention(case, ("structures", name, number, field), one, "confidence")


def _mention(case: Mapping[str, Any], place: Key, value: Mapping[str, Any], score: str) -> Iterator[tuple[Key, float]]:
    """Give a mention or a choice; mentions end with the text, where the library may count a full stop of its own."""
    if value.get("start") is None:
        yield (*place, value["text"]), value[score]
        return
    start, end = value["start"], min(value["end"], len(case["text"].rstrip()))
    if start >= end:
        return
    if score == "score" and case["text"][start:end].strip() != value["text"].strip():
        raise WrongAnswer(f"a value's text is not what is at {start} to {end}")
    yield (*place, start, end), value[score]


def _listed(value: Any) -> list[Any]:
    if value is None or value == "":
        return []
    return value if isinstance(value, list) else [value]


def _named(key: Key) -> str:
    """Name a value without any text of the case."""
    return f"{key[0]}: " + ", ".join(str(part) for part in key[2:] if isinstance(part, int))


PARITY = Extraction()
