"""Random requests and planted scores, for comparisons with the library in its own environment."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from encoder_checkpoints.original import original
from encoder_plugins.families.gliner2 import decode, limits, schema, words
from encoder_plugins.families.gliner2.decode import Candidates, Found, Part
from encoder_plugins.families.gliner2.request import Gliner2Limits, Label, Mention, Relation, Request, Result, Value
from encoder_plugins.families.gliner2.tasks import Schema
from encoder_plugins.families.gliner2.validators import Checker, Matcher

ORACLE = "encoder_plugins.families.gliner2.tests.oracle"
LIMITS = Gliner2Limits(**{limit.name: limit.default for limit in limits.LIMITS})
WIDTHS = 8
THRESHOLDS = (None, 0.3, 0.6, 0.7)
NAMES = (
    "date",
    "place of birth",
    "Firma",
    "vendor",
    "total amount",
    "naïve é",
    "名前",
    "x",
    "sum: net",
    "a/b",
    "İ",
    "e-mail",
)
WORDS = (
    "Ada",
    "met",
    "Bob",
    "in",
    "Rome,",
    "İstanbul",
    "ada@b.org",
    "@ada",
    "www.x.y/z",
    "foo_bar-baz",
    "ſo",
    "क्षि",
    "12.50",
    "(x)",
    "\u200d",
)


def call(function: str, *arguments: Any, **options: Any) -> Any:
    """Call a function of ``oracle`` in the library's environment."""
    return original("gliner2").call(f"{ORACLE}:{function}", *arguments, **options)


@cache
def tokenizer() -> Tokenizer:
    """Return the library's tokenizer."""
    return Tokenizer.from_str(call("tokenizer"))


def read(data: dict[str, Any]) -> Schema:
    """Return a schema that came as ``data.schema``."""
    converted = msgspec.convert({"text": "x", "schema": data}, Request)
    (found,) = schema.schemas_of(converted, 1, LIMITS)
    return found


def random_text(rng: random.Random, most: int) -> str:
    """Return a text that ends as the library leaves it."""
    return " ".join(rng.choices(WORDS, k=rng.randint(1, most))) + rng.choice([".", " .", "!", "?"])


def random_schema(rng: random.Random) -> dict[str, Any]:
    """Return a schema of random tasks, all with different names."""
    names = [f"{name}{number}" if number else name for number in range(4) for name in NAMES]
    rng.shuffle(names)
    sections = rng.sample(["entities", "structures", "classifications", "relations"], rng.randint(1, 4))
    made: dict[str, Any] = {}
    if "structures" in sections:
        made["structures"] = {}
        for _ in range(rng.randint(1, 2)):
            fields = []
            for _ in range(rng.randint(1, 3)):
                choices = [names.pop() for _ in range(rng.randint(1, 3))] if rng.random() < 0.4 else None
                fields.append(
                    {
                        "name": names.pop(),
                        "dtype": rng.choice(["str", "list"]),
                        "choices": choices,
                        "description": rng.choice([None, "", "what it means"]),
                        "threshold": rng.choice(THRESHOLDS),
                    }
                )
            made["structures"][names.pop()] = {"fields": fields}
    if "entities" in sections:
        types = [names.pop() for _ in range(rng.randint(1, 3))]
        made["entities"] = rng.choice(
            [
                types,
                {name: rng.choice(["", "some words"]) for name in types},
                {
                    name: {"dtype": rng.choice([None, "str", "list"]), "threshold": rng.choice(THRESHOLDS)}
                    for name in types
                },
            ]
        )
        if rng.random() < 0.4:
            made["entity_attributes"] = {
                f"group {number}": {
                    "labels": [names.pop() for _ in range(rng.randint(1, 3))],
                    "multi_label": rng.random() < 0.5,
                    "threshold": 0.4,
                    "applies_to": rng.choice([None, types[:1]]),
                    "qualify_labels": rng.random() < 0.5,
                }
                for number in range(rng.randint(1, 2))
            }
    if "classifications" in sections:
        made["classifications"] = []
        for number in range(rng.randint(1, 2)):
            labels = [names.pop() for _ in range(rng.randint(2, 4))]
            made["classifications"].append(
                {
                    "task": f"task{number}",
                    "labels": rng.choice([labels, {label: "about it" for label in labels}]),
                    "multi_label": rng.random() < 0.6,
                    "cls_threshold": rng.choice([0.3, 0.5, 0.9]),
                    "top_k": rng.choice([None, 1, 2]),
                    "class_act": rng.choice([None, "auto", "sigmoid", "softmax"]),
                    "prompt": rng.choice([None, "", "what is it"]),
                    "examples": rng.choice([None, [("a text", labels[0]), ("another", labels[1])]]),
                }
            )
    if "relations" in sections:
        pairs = [names.pop() for _ in range(rng.randint(1, 2))]
        # with a description the library answers under another name: see the deviations on the plugin's page
        made["relations"] = rng.choice([pairs, {name: {"threshold": rng.choice(THRESHOLDS)} for name in pairs}])
    return made


@cache
def logits_of(step: float) -> NDArray[np.float32]:
    """Return logits for which torch computes the same probability wherever they are in a tensor: it has two ways."""
    values = torch.arange(-16, 16, step)
    alone = torch.cat([torch.sigmoid(value[None]) for value in values])
    together = torch.sigmoid(values.repeat_interleave(128)).reshape(-1, 128)
    kept: NDArray[np.float32] = values[(together == alone[:, None]).all(-1)].numpy()
    return kept


def plant(rng: np.random.Generator, found: Schema, part: Part, *, low: float = -3.0) -> dict[str, Any]:
    """Return random scores for a part; many of them are equal."""
    values = logits_of(float(rng.choice([0.5, 0.01])))
    count = len(found.prefix) + len(part.words)
    counts, scores = [], []
    for task in found.spans:
        counts.append(int(rng.integers(0, 4)))
        steps = 1 if task.kind == "entities" else max(counts[-1], 1)
        drawn = rng.normal(low, 2.5, (steps, len(task.fields), count, WIDTHS))
        logits = values[np.searchsorted(values, drawn).clip(0, len(values) - 1)]
        outside = np.arange(count)[:, None] + np.arange(WIDTHS) >= count
        logits[..., outside] = -np.inf
        scores.append(logits)
    labels = [(np.round(rng.normal(0, 1, len(task.labels)) * 2) / 2).astype(np.float32) for task in found.classes]
    return {"counts": counts, "scores": scores, "labels": labels}


def found_of(found: Schema, plan: dict[str, Any], least: float = 0.0) -> Found:
    """Return what the engine would have found where the library has the scores of ``plan``."""
    places, found_scores, labels = [], [], []
    most = max((len(task.fields) for task in found.spans), default=0)
    for number, (task, logits) in enumerate(zip(found.spans, plan["scores"], strict=True)):
        scores = torch.sigmoid(torch.from_numpy(logits)).numpy()
        attributes = found.types if task.kind == "entities" else len(task.fields)
        for step, field, start, width in np.argwhere((scores >= least) & np.isfinite(logits)).tolist():
            if field < attributes:
                more = np.zeros(most, np.float32)
                more[: len(task.fields) - attributes] = logits[step, attributes:, start, width]
                places.append((number, step, field, start, width))
                found_scores.append(scores[step, field, start, width])
                labels.append(more)
    candidates = Candidates(
        np.array(places, np.int64).reshape(-1, 5),
        np.array(found_scores, np.float32),
        np.array(labels, np.float32).reshape(len(labels), most),
    )
    return Found(plan["counts"], candidates, [torch.from_numpy(logits) for logits in plan["labels"]])


def whole(text: str) -> Part:
    """Return a text as the model reads it whole."""
    return Part(text, 0, words.split(words.ended(text)))


def answer_of(found: Schema, library: dict[str, Any]) -> Result:
    """Return the library's formatted answer in the shape of ours."""
    entities: dict[str, list[Mention]] = {}
    relations: dict[str, list[Relation]] = {}
    structures: dict[str, Any] = {}
    for task in found.spans:
        if task.kind == "entities":
            given = library.get("entities") or {}
            for field in task.fields[: found.types]:
                value = given.get(field.name)
                items = [item for item in (value if isinstance(value, list) else [value]) if item]
                entities[field.name] = [_mention(item, attributes=bool(found.attributes)) for item in items]
        elif task.kind == "relations":
            given = library["relation_extraction"][task.name]
            relations[task.name] = [Relation(_mention(item["head"]), _mention(item["tail"])) for item in given]
        else:
            structures[task.name] = [
                {name: _value(value) for name, value in record.items()} for record in library[task.name] or []
            ]
    classifications = {}
    for classes in found.classes:
        chosen = library[classes.name]
        classifications[classes.name] = [_label(label) for label in (chosen if isinstance(chosen, list) else [chosen])]
    return Result(entities=entities, classifications=classifications, relations=relations, structures=structures)


def _label(item: dict[str, Any]) -> Label:
    return Label(item["label"], item["confidence"])


def _mention(item: dict[str, Any], *, attributes: bool = False) -> Mention:
    more = {name: value for name, value in item.items() if name not in ("text", "confidence", "start", "end")}
    labels = {
        name: [_label(label) for label in value] if isinstance(value, list) else _label(value)
        for name, value in more.items()
    }
    return Mention(item["text"], item["start"], item["end"], item["confidence"], labels if attributes else None)


def _value(item: Any) -> Any:
    if isinstance(item, list):
        return [_value(part) for part in item]
    return item and Value(item["text"], item["confidence"], item.get("start"), item.get("end"))


def decoded(found: Schema, part: Part, plan: dict[str, Any], threshold: float, policy: Any) -> Result:
    """Return our answer to a part with planted scores."""
    return decode.result(found, part, found_of(found, plan, 0.25), threshold, policy, Checker(Matcher()))
