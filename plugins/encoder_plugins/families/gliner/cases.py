"""The built-in cases of entity recognition, and what a user's own cases may hold.

Standard library only: prep, the recorder and the parity check import it.

Every case is sent in two ways. For its *entities*: with its own settings. For its *scores*: what a decoder returns is never
all that was scored, because entities keep others out. So the spans are sorted into groups of which none crosses another -
those that begin at every ``width``-th word - and each group is requested by ``input_spans``, nested, with all labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict

from encoder_plugins.artifact.cases import Inputs, complete
from encoder_plugins.artifact.label_sets import Label
from encoder_plugins.errors import Unsupported

Measures = Literal["entities", "scores"]

# spans with a score above this are compared: below it, a server counts what might become a candidate
LOW = 0.1
# words up to which every group of spans is requested; beyond, one of them, which has every width
FEW_WORDS = 48
# words of the longest span whose score is compared, where a model has no longest one
SCORED_WIDTH = 6
# words of the case in the middle of what a model takes: the reference is recorded on a CPU
MOST_WORDS = 200
# labels of a set that are compared
FEW_LABELS = 20
# beyond this many words a text that is too long takes minutes
MOST_OVERLONG = 1_200

LABELS = ("person", "organization", "location", "date")
SENTENCE = "Barack Obama met Angela Merkel at the Chancellery in Berlin on 19 June 2013, said the Reuters news agency."
FILLER = [
    "Maria",
    "Skłodowska-Curie",
    "worked",
    "in",
    "Paris",
    ",",
    "where",
    "the",
    "river",
    "Seine",
    "flows",
    "past",
    "the",
    "University",
    "of",
    "Paris",
    ";",
    "her",
    "daughter",
    "Irène",
    "won",
    "a",
    "prize",
    "in",
    "1935",
    ".",
]
TEXTS: Mapping[str, str] = {
    "short": SENTENCE,
    "one-word": "Zürich",
    "punctuation": "?!... --- ;;; (Tim Cook) [Apple] {iPhone} «Cupertino» – $ 3.14!",
    "hyphens": "Jean-Claude Juncker-like well-known twenty-first-century e-mail -start end- a--b",
    "combining": "Cafe\u0301 Zu\u0308rich in Sa\u0303o Paulo, A\u030angstro\u0308m",
    "emoji": "I met 😀 Anna 👨‍👩‍👧‍👦 in 🇫🇮 Helsinki 👋🏽 yesterday ❤️.",
    "line-ends": "Anna Schmidt\r\nHauptstraße 5\r\n\r\n10115\tBerlin\nGermany\u2028Europe",
    "turkish": "İstanbul'da ılık bir gün: IŞIK, ışık ve Iğdır.",
    "scripts": "Москва, Αθήνα, القاهرة, תל אביב, नई दिल्ली, กรุงเทพ and 東京 are capitals; 서울 is too.",
    "rare-planes": "𝔅𝔢𝔯𝔩𝔦𝔫 𒀀 \U000f0000 and \ue000 \ufffd zero\u200bwidth soft\u00adhyphen",
    "markup": "<<ENT>> person <<SEP>> [CLS] <bos> </s> &amp; <b>Bonn</b>",
    "repeated": "Bonn " * 30,
}


class Case(TypedDict):
    """One text, what is measured with it, and what the library answered.

    Attributes:
        id: Its name.
        measures: Its entities, or its scores.
        text: The text.
        labels: As they are sent: one may be there twice.
        threshold: As in a request, and so are the next three.
        flat_ner: Whether entities share no words.
        multi_label: Whether the same words may have several labels.
        overflow: What happens to words that are too many.
        width: Words of the longest span.
        by_word: Whether the model scores words, and a span has the lowest score of its words.
        words: Start and end of each word that the model reads.
        span_groups: Which groups of spans are requested, by their first word; empty where entities are measured.
        entities: The library's answer; empty where scores are measured.
        label_set: The set of the artifact that the labels are sent by, where they are.
        ids: The id of each label in that set; sent, unless the labels are all of the set.
        whole: Whether they are.
    """

    id: str
    measures: Measures
    text: str
    labels: list[str]
    threshold: float
    flat_ner: bool
    multi_label: bool
    overflow: Literal["refuse", "truncate"]
    width: NotRequired[int]
    by_word: NotRequired[bool]
    words: NotRequired[list[list[int]]]
    span_groups: NotRequired[list[int]]
    entities: NotRequired[list[dict[str, Any]]]
    label_set: NotRequired[str]
    ids: NotRequired[list[str]]
    whole: NotRequired[bool]


OPTIONS: Mapping[str, Any] = {"threshold": 0.5, "flat_ner": True, "multi_label": False}


def cases(max_words: int) -> list[Case]:
    """Return the built-in cases of a checkpoint that takes ``max_words`` words; each measures entities."""
    many = [f"{place} {kind}" for place in ("famous", "European", "former", "small") for kind in KINDS]
    found = [_case(name, text) for name, text in TEXTS.items()]
    found += [
        _case("one-label", SENTENCE, labels=["person"]),
        _case("many-labels", SENTENCE, labels=many),
        _case("duplicate-labels", SENTENCE, labels=["person", "city", "person", "date", "city"]),
        _case("labels-of-scripts", SENTENCE, labels=["人物", "город", "Pays où l'on vit", "x\u0301"]),
        _case("nested", SENTENCE, threshold=0.3, flat_ner=False),
        _case("several-labels", SENTENCE, threshold=0.3, multi_label=True),
        _case("nested-several-labels", SENTENCE, threshold=0.2, flat_ner=False, multi_label=True),
        _case("low-threshold", SENTENCE, threshold=0.15),
        _case("zero-threshold", "Tim Cook leads Apple in Cupertino.", threshold=0.0),
        _case("empty-result", SENTENCE, threshold=1.0),
        _case("no-word", " \u00a0 "),
        _case("long", _words(min(max_words // 2, MOST_WORDS)), overflow="truncate"),
    ]
    if max_words <= MOST_OVERLONG:
        found.append(_case("overlong", _words(max_words + max(2, max_words // 16)), overflow="truncate"))
    return found


def label_set_case(name: str, labels: Sequence[Label]) -> Case:
    """Return the case of a label set: all of its labels, where they are at most ``FEW_LABELS``, else the first ones by their ids.

    Args:
        name: What requests call it.
        labels: Its first labels, more than ``FEW_LABELS`` of them where it has more.
    """
    sent = labels[:FEW_LABELS]
    case = _case(f"label-set:{name}", SENTENCE, labels=[label.text for label in sent], threshold=0.3)
    return Case(**case, label_set=name, ids=[label.id for label in sent], whole=len(sent) == len(labels))


KINDS = (
    "person",
    "company",
    "city",
    "country",
    "river",
    "language",
    "sports team",
    "date of birth",
    "medical condition",
)


def user_cases(inputs: Inputs, others: Sequence[Case]) -> list[Case]:
    """Return a user's own cases: text and labels each, and other fields of a request. Words too many are left out.

    Raises:
        Unsupported: One has a field that is missing, unknown, or of another type.
    """
    found = []
    for values in complete(inputs, ("text", "labels"), OPTIONS, [case["id"] for case in others]):
        where = f"inputs: {values['id']}"
        text, labels, threshold = values["text"], values["labels"], values["threshold"]
        if not isinstance(text, str) or not text:
            raise Unsupported(f"{where}: text is not a text")
        if not isinstance(labels, list) or not labels or not all(isinstance(label, str) and label for label in labels):
            raise Unsupported(f"{where}: labels is not a list of texts")
        if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
            raise Unsupported(f"{where}: threshold is not a number from 0 to 1")
        for name in ("flat_ner", "multi_label"):
            if not isinstance(values[name], bool):
                raise Unsupported(f"{where}: {name} is neither true nor false")
        options = {name: values[name] for name in OPTIONS}
        found.append(_case(values["id"], text, labels=labels, overflow="truncate", **options))
    return found


def answered(
    case: Mapping[str, Any], *, width: int | None, words: list[list[int]], entities: list[dict[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return a case with the library's answer, and, where there are scores to compare, the one that measures those.

    Args:
        case: What was sent to the library.
        width: Words of the longest span; None for a model that scores words, and has no longest one.
        words: Start and end of each word that the model reads.
        entities: The library's answer.
    """
    scored = width or max(1, min(SCORED_WIDTH, len(words)))
    of_entities = {
        **case,
        "width": width or max(1, len(words)),
        "by_word": width is None,
        "words": words,
        "entities": entities,
        "span_groups": [],
    }
    if not words or len(words) > MOST_WORDS or case["threshold"] in (0.0, 1.0):
        return [of_entities]
    groups = list(range(min(scored, len(words)))) if len(words) <= FEW_WORDS else [0]
    of_scores = {
        "width": scored,
        "id": f"{case['id']}:scores",
        "measures": "scores",
        "span_groups": groups,
        "entities": [],
    }
    return [of_entities, {**of_entities, **of_scores}]


def different(labels: Sequence[str]) -> list[str]:
    """Return each label once, as the library counts them."""
    return list(dict.fromkeys(labels))


def _case(
    name: str,
    text: str,
    *,
    labels: Sequence[str] = LABELS,
    threshold: float = 0.5,
    flat_ner: bool = True,
    multi_label: bool = False,
    overflow: Literal["refuse", "truncate"] = "refuse",
) -> Case:
    return Case(
        id=name,
        measures="entities",
        text=text,
        labels=list(labels),
        threshold=threshold,
        flat_ner=flat_ner,
        multi_label=multi_label,
        overflow=overflow,
    )


def _words(count: int) -> str:
    return " ".join(FILLER[index * 7 % len(FILLER)] for index in range(max(1, count)))


BUILT_IN = frozenset(case["id"] for case in cases(1))
"""The ids of the built-in cases."""
