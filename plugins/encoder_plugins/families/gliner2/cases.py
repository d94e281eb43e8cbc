"""The built-in cases of structured extraction, and what a user's own cases may hold.

Standard library only: prep, the recorder and the parity check import it.

A case measures *scores*, or an *answer*. For scores, every value above a low threshold comes back, overlapping ones too, and every label
of a classification: nothing that the model computed is hidden by a decision. For an answer, the case has the settings that a client
would send.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from encoder_plugins.artifact.cases import Inputs, complete
from encoder_plugins.errors import Unsupported

Measures = Literal["answer", "scores"]

# values with a score of at least this are compared: below it, a server counts what might become a candidate
LOW = 0.1
OPTIONS: Mapping[str, Any] = {"threshold": 0.5, "overlap_policy": None}
# words of the long case: the reference is recorded on a CPU
LONG = 120

SENTENCE = (
    "Barack Obama met Angela Merkel at the Chancellery in Berlin on 19 June 2013, according to the Reuters news agency."
)
# the library ends other texts with a full stop of its own
TEXTS: Mapping[str, str] = {
    "short": SENTENCE,
    "one-word": "Zürich.",
    "punctuation": "?!... --- ;;; (Tim Cook) [Apple] {iPhone} «Cupertino» – $ 3.14!",
    "hyphens": "Jean-Claude Juncker-like well-known twenty-first-century e-mail -start end- a--b.",
    "addresses": "Write to ada@example.org or @ada, or see https://example.org/a?b=c and www.example.org for more.",
    "combining": "Cafe\u0301 Zu\u0308rich in Sa\u0303o Paulo, A\u030angstro\u0308m.",
    "emoji": "I met 😀 Anna 👨‍👩‍👧‍👦 in 🇫🇮 Helsinki 👋🏽 yesterday ❤️.",
    "line-ends": "Anna Schmidt\r\nHauptstraße 5\r\n\r\n10115\tBerlin\nGermany\u2028Europe.",
    "turkish": "İstanbul'da ılık bir gün: IŞIK, ışık ve Iğdır.",
    "scripts": "Москва, Αθήνα, القاهرة, नई दिल्ली, กรุงเทพ and 東京 are capitals; 서울 is too.",
    "markup": "[CLS] [SEP_TEXT] [P] city </s> &amp; <b>Bonn</b>.",
}
ENTITIES: Mapping[str, Any] = {"entities": ["person", "organization", "location", "date"]}
RECORDS: Mapping[str, Any] = {
    "meeting": {"fields": [{"name": "who", "dtype": "list"}, {"name": "where", "dtype": "list"}]},
    "report": {"fields": [{"name": "source", "dtype": "list", "description": "where it comes from"}]},
}
TOPICS: Mapping[str, Any] = {"task": "topic", "labels": ["politics", "sports", "science"]}
ALL_LABELS: Mapping[str, Any] = {"multi_label": True, "cls_threshold": 0.0}
ATTRIBUTES: Mapping[str, Any] = {
    "size": {"labels": ["large", "small", "unknown"], "multi_label": True, "threshold": 0.0},
}


class Case(TypedDict):
    """One text and its schema.

    Attributes:
        id: Its name.
        measures: Its scores, or its answer.
        text: The text.
        schema: As in a request, in the form of the library's ``Schema.from_dict``.
        threshold: As in a request.
        overlap_policy: As in a request.
    """

    id: str
    measures: Measures
    text: str
    schema: dict[str, Any]
    threshold: float
    overlap_policy: str | None


def cases() -> list[Case]:
    """Return the built-in cases."""
    found: list[Case] = []
    for name, text in TEXTS.items():
        found += [scores(f"{name}:entities", text, {**ENTITIES}), answer(name, text, {**ENTITIES})]
    topic = {"classifications": [{**TOPICS, **ALL_LABELS}, {"task": "mood", "labels": ["good", "bad"], **ALL_LABELS}]}
    records: dict[str, Any] = {"structures": {**RECORDS}}
    mixed = {**ENTITIES, **records, **topic}
    for name, text in {"short": SENTENCE, "turkish": TEXTS["turkish"], "scripts": TEXTS["scripts"]}.items():
        found += [
            scores(f"{name}:records", text, records),
            scores(f"{name}:labels", text, topic),
            scores(f"{name}:attributes", text, {**ENTITIES, "entity_attributes": {**ATTRIBUTES}}),
            answer(f"{name}:relations", text, {"relations": ["works for", "met"]}),
        ]
    for name, text in {"short": SENTENCE, "addresses": TEXTS["addresses"], "long": _words(LONG)}.items():
        found += [
            scores(f"{name}:mixed", text, mixed),
            answer(f"{name}:all", text, {**mixed, "relations": ["met"], "classifications": [{**TOPICS}]}),
        ]
    choice = {"name": "kind", "dtype": "str", "choices": ["Visit", "Phone CALL"]}
    chosen = {"structures": {"meeting": {"fields": [{"name": "who", "dtype": "str"}, choice]}}}
    found += [
        answer("choices", SENTENCE, chosen, threshold=0.3),
        answer("type-thresholds", SENTENCE, {"entities": {"person": {"threshold": 0.2}, "date": {"threshold": 0.8}}}),
        answer("descriptions", SENTENCE, {"entities": {"PERSON": "A Human Being", "Capital City": "a TOWN"}}),
        *(
            answer(f"overlaps-{policy}", SENTENCE, {**ENTITIES}, threshold=0.2, overlap_policy=policy)
            for policy in ("flat", "nested", "longest", "allow")
        ),
        answer("empty-result", SENTENCE, {**ENTITIES}, threshold=1.0),
    ]
    return found


def user_cases(inputs: Inputs, others: Sequence[Case]) -> list[Case]:
    """Return a user's own cases: text and schema each, and other fields of a request.

    Raises:
        Unsupported: One has a field that is missing, unknown, or of another type.
    """
    found = []
    for values in complete(inputs, ("text", "schema"), OPTIONS, [case["id"] for case in others]):
        where = f"inputs: {values['id']}"
        text, schema, threshold, policy = (values[name] for name in ("text", "schema", *OPTIONS))
        if not isinstance(text, str) or not text:
            raise Unsupported(f"{where}: text is not a text")
        if not isinstance(schema, dict) or not schema:
            raise Unsupported(f"{where}: schema is not an object")
        relations = schema.get("relations")
        if isinstance(relations, dict) and any(relations.values()):
            raise Unsupported(f"{where}: relations have descriptions or settings, which the library answers otherwise")
        if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
            raise Unsupported(f"{where}: threshold is not a number from 0 to 1")
        if policy is not None and not isinstance(policy, str):
            raise Unsupported(f"{where}: overlap_policy is not a text")
        found.append(answer(values["id"], text, schema, threshold=threshold, overlap_policy=policy))
    return found


def scores(name: str, text: str, schema: dict[str, Any]) -> Case:
    """Return a case that measures scores."""
    return Case(id=name, measures="scores", text=text, schema=_ordered(schema), threshold=LOW, overlap_policy="allow")


def answer(
    name: str, text: str, schema: dict[str, Any], *, threshold: float = 0.5, overlap_policy: str | None = None
) -> Case:
    """Return a case that measures an answer."""
    return Case(
        id=name,
        measures="answer",
        text=text,
        schema=_ordered(schema),
        threshold=threshold,
        overlap_policy=overlap_policy,
    )


def _ordered(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in the order that a stored case has: the order of a prompt decides every score."""
    found: dict[str, Any] = json.loads(json.dumps(schema, sort_keys=True))
    return found


def _words(count: int) -> str:
    words = SENTENCE.removesuffix(".").split()
    return " ".join(words[number * 7 % len(words)] for number in range(count)) + "."
