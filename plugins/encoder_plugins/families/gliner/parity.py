"""The built-in cases of entity recognition, how each is asked, and how close an answer must be.

numpy only: the prep image records with these cases, and the parity Job asks them, without torch or vLLM.

Every case is asked in two ways. For its *entities*: with its own settings. For its *scores*: what a decoder returns is never
all that was scored, because entities keep others out. So the spans are sorted into families of which none crosses another -
those that begin at every ``max_width``-th word - and each family is asked for by ``input_spans``, nested, with all labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from encoder_plugins.artifact.cases import Inputs, complete
from encoder_plugins.errors import Unsupported, WrongAnswer
from encoder_plugins.parity.verdict import Array, Bound, Compared, Encoding, Tolerance

Scores = NDArray[np.float64]
Ask = Literal["entities", "scores"]

# spans with a score above this are compared: below it, a server counts what might become a candidate
LOW = 0.1
# pairs of span and label that count as much as a text does for the size of a request: an answer has limits, too
PAIRS_OF_A_TEXT = 200
# words up to which every family is asked for; beyond, one of them, which has every width
FEW_WORDS = 48
# words of the case in the middle of what a model takes: the reference is recorded on a CPU
MOST_WORDS = 200
# beyond this many words a text that is too long takes minutes
MOST_OVERLONG = 1_200

LABELS = ("person", "organization", "location", "date")
SENTENCE = "Barack Obama met Angela Merkel at the Chancellery in Berlin on 19 June 2013, said the Reuters news agency."
FILLER = (
    *("Maria", "Skłodowska-Curie", "worked", "in", "Paris", ",", "where", "the", "river", "Seine", "flows"),
    *(
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
    ),
)
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
    """One text, what is asked of it, and what the library answered.

    Attributes:
        id: Its name.
        ask: For its entities, or for its scores.
        text: The text.
        labels: As they are sent: one may be there twice.
        threshold: As in a request, and so are the next three.
        flat_ner: Whether entities share no words.
        multi_label: Whether the same words may have several labels.
        overflow: What happens to words that are too many.
        width: Words of the longest span.
        words: Start and end of each word that the model reads.
        families: Which families of spans are asked for, by their first word.
        entities: The library's answer; empty where scores are asked for.
        low: Its answer at the threshold `LOW`, for people who look into an artifact.
    """

    id: str
    ask: Ask
    text: str
    labels: list[str]
    threshold: float
    flat_ner: bool
    multi_label: bool
    overflow: Literal["refuse", "truncate"]
    width: NotRequired[int]
    words: NotRequired[list[list[int]]]
    families: NotRequired[list[int]]
    entities: NotRequired[list[dict[str, Any]]]
    low: NotRequired[list[dict[str, Any]]]


OPTIONS: Mapping[str, Any] = {"threshold": 0.5, "flat_ner": True, "multi_label": False}


def cases(max_words: int) -> list[Case]:
    """Return the built-in cases of a checkpoint that takes ``max_words`` words; each is asked for its entities."""
    many = [f"{place} {kind}" for place in ("famous", "European", "former", "small") for kind in KINDS]
    found = [_case(name, text) for name, text in TEXTS.items()]
    found += [
        _case("one-label", SENTENCE, labels=["person"]),
        _case("many-labels", SENTENCE, labels=many),
        _case("duplicate-labels", SENTENCE, labels=["person", "city", "person", "date", "city"]),
        _case("labels-of-scripts", SENTENCE, labels=["人物", "город", "pays où l'on vit", "x\u0301"]),
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
    """Return a user's own cases: text and labels each, and what else a request may say. Words too many are left out.

    Raises:
        Unsupported: One is none.
    """
    found = []
    for values in complete(inputs, ("text", "labels"), OPTIONS, [case["id"] for case in others]):
        where = f"inputs: {values['id']}"
        text, labels, threshold = values["text"], values["labels"], values["threshold"]
        if not isinstance(text, str) or not text:
            raise Unsupported(f"{where}: text is no text")
        if not isinstance(labels, list) or not labels or not all(isinstance(label, str) and label for label in labels):
            raise Unsupported(f"{where}: labels is no list of texts")
        if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
            raise Unsupported(f"{where}: threshold is no number from 0 to 1")
        for name in ("flat_ner", "multi_label"):
            if not isinstance(values[name], bool):
                raise Unsupported(f"{where}: {name} is neither true nor false")
        options = {name: values[name] for name in OPTIONS}
        found.append(_case(values["id"], text, labels=labels, overflow="truncate", **options))
    return found


def answered(
    case: Case, *, width: int, words: list[list[int]], entities: list[dict[str, Any]], low: list[dict[str, Any]]
) -> list[Case]:
    """Return a case with the library's answer, and, where there are scores to compare, the one that asks for those."""
    of_entities: Case = {**case, "width": width, "words": words, "entities": entities, "low": low, "families": []}
    if not words or len(words) > MOST_WORDS or case["threshold"] in (0.0, 1.0):
        return [of_entities]
    families = list(range(min(width, len(words)))) if len(words) <= FEW_WORDS else [0]
    return [
        of_entities,
        {**of_entities, "id": f"{case['id']}:scores", "ask": "scores", "families": families, "entities": [], "low": []},
    ]


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
        ask="entities",
        text=text,
        labels=list(labels),
        threshold=threshold,
        flat_ner=flat_ner,
        multi_label=multi_label,
        overflow=overflow,
    )


def _words(count: int) -> str:
    return " ".join(FILLER[index * 7 % len(FILLER)] for index in range(max(1, count)))


def _bounds(largest: float, rms: float) -> Tolerance:
    """Return the bounds of a number format; entities may only differ where scores may."""
    return (
        Bound("score_error", at_most=largest),
        Bound("score_rms", at_most=rms),
        Bound("decoded_shift", at_most=largest),
    )


class Entities:
    """The plugin's side of a comparison; ``encoder_plugins.parity.verdict`` says what each part is for.

    `score_error` is the largest difference of a score, and `score_rms` the root of the mean square of a case's differences,
    where its scores were asked for: rounding makes some large, and only a mistake makes many. `decoded_shift` says how far
    the reference's scores would have to move for the answer to be the library's own: 0 where both are the same, and small
    where a score is next to the threshold or to the score of an entity that it overlaps. An entity that nothing explains
    makes it large.
    """

    tolerances: Mapping[str, Tolerance] = {
        # 24 bits of mantissa: the engine only sums in another order. 2.5e-5 of a score is 1e-4 of a logit, where a score changes
        # most; tiny checkpoints on a CPU came to 4.5e-6 to 8.9e-6
        "float32": _bounds(2.5e-5, 2.5e-5),
        # 11 bits. The library in float16 is up to 0.019 (rms 0.0054) away from itself in float32, on random weights, which
        # round worse than trained ones; an engine rounds elsewhere, and two such errors may add up
        "float16": _bounds(0.04, 0.012),
        # 8 bits. The library in bfloat16 is up to 0.10 (rms 0.026) away from itself in float32 at true shapes, 0.18 (rms 0.052)
        # on tiny ones; another model is far outside still: scores that have nothing to do with each other have an rms of 0.3
        "bfloat16": _bounds(0.25, 0.1),
    }

    def group(self, case: Mapping[str, Any]) -> object:
        """Return what cases must share to be asked in one request."""
        if case["ask"] == "scores":
            return "scores"
        return tuple(case[name] for name in (*OPTIONS, "overflow"))

    def weight(self, case: Mapping[str, Any]) -> int:
        """Return as how many texts a case counts: as many as it has, or more if its answer is large."""
        families = _texts(case)
        if case["ask"] == "entities":
            return families
        spans = len(case["words"]) * case["width"] * families // min(case["width"], len(case["words"]))
        pairs: int = spans * len(case["labels"])
        return max(families, pairs // PAIRS_OF_A_TEXT)

    def data(self, together: Sequence[Mapping[str, Any]], encoding: Encoding) -> dict[str, Any]:
        """Return the request data that asks ``together``, cases of one group."""
        first = together[0]
        if first["ask"] == "scores":
            asked = [(case, family) for case in together for family in case["families"]]
            return {
                "texts": [case["text"] for case, _ in asked],
                "labels_per_text": [case["labels"] for case, _ in asked],
                "input_spans": [_spans(case, family) for case, family in asked],
                "threshold": LOW,
                "flat_ner": False,
                "multi_label": True,
                "overflow": "truncate",
            }
        if len(together) == 1:
            texts = {"text": first["text"], "labels": first["labels"]}
        else:
            texts = {
                "texts": [case["text"] for case in together],
                "labels_per_text": [case["labels"] for case in together],
            }
        return {**texts, **{name: first[name] for name in (*OPTIONS, "overflow")}}

    def outputs(self, answer: Any, together: Sequence[Mapping[str, Any]], encoding: Encoding) -> list[Any]:
        """Return the entities of each case.

        Raises:
            WrongAnswer: The answer is none that this plugin gives.
        """
        try:
            single = len(together) == 1 and together[0]["ask"] == "entities"
            results = [answer] if single else answer["results"]
            lists = [list(result["entities"]) for result in results]
        except (KeyError, TypeError) as error:
            raise WrongAnswer(f"the answer holds no entities: {error!r}"[:200]) from None
        counts = [_texts(case) for case in together]
        if len(lists) != sum(counts):
            raise WrongAnswer(f"{sum(counts)} texts were asked, and {len(lists)} answered")
        found = []
        for count in counts:
            found.append([entity for part in lists[:count] for entity in part])
            del lists[:count]
        return found

    def compare(self, case: Mapping[str, Any], got: Any, expected: Array) -> Compared:
        """Compare the entities of one case with the logits `[words, width, labels]` that the library computed.

        Raises:
            WrongAnswer: An entity is none: its offsets, text, label or score.
        """
        scores = _sigmoid(expected)
        found = dict(_read(case, entity) for entity in got)
        if len(found) != len(got):
            raise WrongAnswer("an entity is there twice")
        errors = [abs(score - float(scores[span])) for span, score in found.items()]
        if case["ask"] == "scores":
            missing = [span for span in _asked(case, scores) if scores[span] > LOW and span not in found]
            # it is at most the threshold
            errors += [float(scores[span]) - LOW for span in missing]
            notes = tuple(f"{_named(case, span)} is missing; its score is {scores[span]:.6f}" for span in missing)
            rms = float(np.sqrt(np.mean(np.square(errors)))) if errors else 0.0
            return Compared({"score_error": max(errors, default=0.0), "score_rms": rms, "decoded_shift": 0.0}, notes)
        if any(before[0] > after[0] for before, after in pairwise(found)):
            raise WrongAnswer("the entities are not in the order of the text")
        metrics = {
            "score_error": max(errors, default=0.0),
            # a few entities say nothing about the many scores
            "score_rms": 0.0,
            "decoded_shift": shift(case, found.keys(), scores),
        }
        return Compared(metrics, tuple(_disagreements(case, found, scores)))


def _texts(case: Mapping[str, Any]) -> int:
    """Return how many texts of a request a case is: one for each family of spans, if it asks for scores."""
    return len(case["families"]) if case["ask"] == "scores" else 1


Span = tuple[int, int, int]
"""First word, further words, number of the label."""


def shift(case: Mapping[str, Any], chosen: Any, scores: Scores) -> float:
    """Return how far scores have to move for ``chosen`` to be what a greedy search keeps; infinite if no move helps.

    A search keeps the best first, and whatever nothing kept overlaps. So everything kept is above the threshold, no two
    of it are in each other's way, and whatever else is above the threshold has something better in its way.
    """
    kept: list[Span] = sorted(chosen)
    threshold = np.float64(np.float32(case["threshold"]))
    moves = [0.0, *(float(threshold - scores[span]) for span in kept)]
    if any(_exclude(case, one, other) for place, one in enumerate(kept) for other in kept[:place]):
        return float("inf")
    words = scores.shape[0]
    taken = set(kept)
    for span in zip(*(axis.tolist() for axis in np.nonzero(scores > threshold)), strict=True):
        if span in taken or span[0] + span[1] >= words:
            continue
        ways = [float(scores[span] - threshold)]
        # both may move: half of the distance each
        ways += [float(scores[span] - scores[other]) / 2 for other in kept if _exclude(case, span, other)]
        moves.append(min(ways))
    return max(moves)


def _exclude(case: Mapping[str, Any], one: Span, other: Span) -> bool:
    """Tell whether the library never keeps both."""
    if one[:2] == other[:2]:
        return not case["multi_label"]
    (first, further), (begin, more) = one[:2], other[:2]
    last, end = first + further, begin + more
    if first > end or begin > last:
        return False
    nested = (first <= begin and end <= last) or (begin <= first and last <= end)
    return bool(case["flat_ner"] or not nested)


def _asked(case: Mapping[str, Any], scores: Scores) -> Iterator[Span]:
    """Enumerate the spans of the families that were asked for, with every label."""
    words, width, labels = scores.shape
    families = set(case["families"])
    for first in range(words):
        if first % width in families:
            for further in range(min(width, words - first)):
                for label in range(labels):
                    yield first, further, label


def _spans(case: Mapping[str, Any], family: int) -> list[dict[str, int]]:
    """Return the spans of a family as a request has them."""
    words, width = case["words"], case["width"]
    return [
        {"start": words[first][0], "end": words[last][1]}
        for first in range(family, len(words), width)
        for last in range(first, min(first + width, len(words)))
    ]


def _read(case: Mapping[str, Any], entity: Any) -> tuple[Span, float]:
    """Return the words and the label that an entity means, and its score."""
    try:
        start, end, text, label, score = (entity[name] for name in ("start", "end", "text", "label", "score"))
        if case["text"][start:end] != text:
            raise WrongAnswer(f"an entity's text is not what is at {start} to {end}")
        first = next(number for number, word in enumerate(case["words"]) if word[0] == start)
        last = next(number for number, word in enumerate(case["words"]) if word[1] == end)
        number = different(case["labels"]).index(label)
        probability = float(score)
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise WrongAnswer(f"no entity of this text: {str(entity)[:100]} ({type(error).__name__})") from None
    if not 0 <= last - first < case["width"] or not 0.0 <= probability <= 1.0:
        raise WrongAnswer(f"no entity that this model can find: {str(entity)[:100]}")
    return (first, last - first, number), probability


def _disagreements(case: Mapping[str, Any], found: Mapping[Span, float], scores: Scores) -> Iterator[str]:
    """Word every entity that only one side has, with its distance to the threshold."""
    expected = dict(_read(case, entity) for entity in case["entities"])
    for span in sorted(found.keys() ^ expected.keys()):
        side = "the library has" if span in expected else "the server has"
        distance = float(scores[span]) - case["threshold"]
        yield f"only {side} {_named(case, span)}; the library's score is {distance:+.6f} from the threshold"


def _named(case: Mapping[str, Any], span: Span) -> str:
    """Name a span by offsets and label's number; a text is nobody's business in a log."""
    first, further, label = span
    return f"{case['words'][first][0]}:{case['words'][first + further][1]} (label {label})"


def _sigmoid(logits: Array) -> Scores:
    """Return probabilities; in float64, so that this side adds nothing."""
    values = logits.astype(np.float64)
    result: Scores = np.where(values >= 0, 1.0, np.exp(-np.abs(values))) / (1.0 + np.exp(-np.abs(values)))
    return result


PARITY = Entities()
