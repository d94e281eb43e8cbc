"""Requests of the parity check for entity recognition, and how close answers must be.

Standard library and numpy only: the parity Job runs it without torch or vLLM. ``cases`` says what is sent.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encoder_plugins.artifact import label_sets
from encoder_plugins.artifact.cases import Inputs
from encoder_plugins.errors import WrongAnswer
from encoder_plugins.families.gliner import cases, checkpoint
from encoder_plugins.families.gliner.cases import LOW, OPTIONS, different
from encoder_plugins.parity.protocol import Array, Arrays, Case, Compared, Threshold, Tolerance, Variant

Scores = NDArray[np.float64]

# pairs of span and label that count as much as a text does for the size of a request: an answer has limits, too
PAIRS_OF_A_TEXT = 200
# scores of the library in bfloat16 that are closer to those in float32 than this are so by chance
SMALLEST_NOISE = 1e-3

POOLING = Variant("pooling")

_SUMS = (
    "24 bits of mantissa: the engine only sums in another order. 2.5e-5 of a score is 1e-4 of a logit, where a score changes"
    " most; tiny checkpoints on a CPU came to 4.5e-6 to 8.9e-6"
)
_NOISE = (
    "in units of what the library itself loses from float32 to bfloat16 on the same spans: an engine that rounds at other"
    " places loses about as much, and a mistake adds to it"
)
_CAP = "no rounding of a sound checkpoint moves a score this far, whatever the library itself loses"
# fp8 of vLLM rounds weights and inputs of the encoder's linear layers to e4m3, whose 4 bits of mantissa are 4 fewer than bfloat16's
_EIGHT_BITS = 16.0
_EIGHT = (
    "in units of what the library itself loses from float32 to bfloat16, which has 8 bits of mantissa to the 4 of e4m3: a rounding is 16"
    " times as large. With rounding as vLLM's, two tiny checkpoints with random weights came to 5.4 and 7.7 (p99), 2.9 and 6.9"
    " (median), 6.0 and 10.3 (shift) on a CPU"
)
_EIGHT_CAP = (
    "0.67 and 0.51 were measured for the same checkpoints, of which no weight was learned; 0.48 to 0.63 on an H200"
)


def _exact(largest: float, p99: float, p50: float) -> Tolerance:
    """Return the thresholds of a dtype whose rounding is far below what the library's own choices cost."""
    return (
        Threshold("score_max", at_most=largest, label="max |Δscore|", reason=_SUMS),
        Threshold("score_p99", at_most=p99, label="p99 |Δscore|", reason=_SUMS),
        Threshold("score_p50", at_most=p50, label="median |Δscore|", reason=_SUMS),
        Threshold("decoded_shift", at_most=largest, label="shift that explains the entities", reason=_SUMS),
    )


def _rounded(factor: float, cap: float, why: str = _NOISE, why_cap: str = _CAP) -> Tolerance:
    """Return the thresholds of a dtype that rounds, with ``factor`` times the library's own loss in bfloat16."""
    return (
        Threshold("score_max", at_most=cap, label="max |Δscore|", reason=why_cap),
        Threshold("noise_p99", at_most=factor, label="p99 |Δscore| over the library's own in bfloat16", reason=why),
        Threshold("noise_p50", at_most=factor, label="median |Δscore| over the library's own in bfloat16", reason=why),
        Threshold("noise_shift", at_most=factor, label="shift that explains the entities, likewise", reason=why),
    )


class Entities:
    """The plugin's side of the parity check; ``encoder_plugins.parity.protocol.Parity`` says what each part is for.

    `score_max` is the largest difference of a score; `score_p50` and `score_p99` are quantiles of the differences of all
    cases that measure scores: rounding makes some large, and only a mistake makes many. `decoded_shift` is how far the
    reference's scores would have to move for the answer to be the library's own: 0 where both are the same, and small where
    a score is next to the threshold or to the score of an entity that it overlaps. An entity that nothing explains makes it
    large. `noise_p50`, `noise_p99` and `noise_shift` are the same in units of what the library loses in bfloat16.
    """

    tolerances: Mapping[str, Tolerance] = {
        "float32": _exact(2.5e-5, 1.5e-5, 5e-6),
        # 3 bits of mantissa more than bfloat16, so an eighth of its rounding; a quarter is allowed
        "float16": _rounded(0.5, 0.06),
        "bfloat16": _rounded(2.0, 0.25),
        "fp8": _rounded(_EIGHT_BITS, 0.8, _EIGHT, _EIGHT_CAP),
    }

    def cases(self, folder: Path, inputs: Inputs) -> list[Case]:
        """Return the built-in cases of the checkpoint in ``folder``, and the user's own."""
        built_in = cases.cases(checkpoint.max_words(folder))
        return [*built_in, *cases.user_cases(inputs, built_in)]

    def label_set_cases(self, sets: Mapping[str, Path]) -> list[Case]:
        """Return a case for each of the artifact's label sets, whose files are given by name."""
        first = ((name, islice(label_sets.read(file), cases.FEW_LABELS + 1)) for name, file in sets.items())
        return [cases.label_set_case(name, list(labels)) for name, labels in first]

    def variants(self) -> Sequence[Variant]:
        """Return the one form that requests of entity recognition have."""
        return (POOLING,)

    def group(self, case: Case, variant: Variant) -> object:
        """Return what cases must share to be sent in one request."""
        label_set = case.get("label_set")
        if case["measures"] == "scores":
            return "scores", label_set
        return (label_set, *(case[name] for name in (*OPTIONS, "overflow")))

    def weight(self, case: Case) -> int:
        """Return as how many texts a case counts: as many as it has, or more if its answer is large."""
        groups = _texts(case)
        if case["measures"] == "entities":
            return groups
        spans = len(case["words"]) * case["width"] * groups // min(case["width"], len(case["words"]))
        pairs: int = spans * len(case["labels"])
        return max(groups, pairs // PAIRS_OF_A_TEXT)

    def body(self, together: Sequence[Case], variant: Variant) -> dict[str, Any]:
        """Return the request body for cases of one group."""
        first = together[0]
        if first["measures"] == "scores":
            sent = [(case, group) for case in together for group in case["span_groups"]]
            data = {
                "texts": [case["text"] for case, _ in sent],
                **_labels([case for case, _ in sent]),
                "input_spans": [_spans(case, group) for case, group in sent],
                "threshold": LOW,
                "flat_ner": False,
                "multi_label": True,
                "overflow": "truncate",
            }
            return {"data": data}
        if len(together) == 1:
            texts = {
                "text": first["text"],
                **(_labels(together) if "label_set" in first else {"labels": first["labels"]}),
            }
        else:
            texts = {"texts": [case["text"] for case in together], **_labels(together)}
        return {"data": {**texts, **{name: first[name] for name in (*OPTIONS, "overflow")}}}

    def outputs(self, content: bytes, together: Sequence[Case], variant: Variant) -> list[Any]:
        """Return the entities of each case.

        Raises:
            WrongAnswer: The body is not an answer of this plugin's.
        """
        try:
            answer = json.loads(content)["data"]
            single = len(together) == 1 and together[0]["measures"] == "entities"
            results = [answer] if single else answer["results"]
            lists = [list(result["entities"]) for result in results]
            kept = [result.get("words_kept") for result in results]
        except (KeyError, TypeError, ValueError) as error:
            raise WrongAnswer(f"the answer holds no entities: {error!r}"[:200]) from None
        counts = [_texts(case) for case in together]
        if len(lists) != sum(counts):
            raise WrongAnswer(f"the answer has {len(lists)} results; the request had {sum(counts)} texts")
        found = []
        for case, count in zip(together, counts, strict=True):
            # what is cut off may have no entity, so that nothing else shows a limit that is wrong
            truncates = case["measures"] == "entities" and case["overflow"] == "truncate"
            if truncates and kept[0] != len(case["words"]):
                raise WrongAnswer(
                    f"{kept[0]} words were read of a text of which the library reads {len(case['words'])}"
                )
            found.append([entity for part in lists[:count] for entity in part])
            del lists[:count], kept[:count]
        return found

    def compare(self, case: Case, got: Any, expected: Arrays) -> Compared:
        """Compare the entities of one case with the logits that the library computed; see ``reference`` for their shape.

        Raises:
            WrongAnswer: An entity is not one of this text: its offsets, text, label or score.
        """
        scores, likely = _scores(case, expected)
        noise, noise_likely = (
            np.abs(rounded - exact)
            for rounded, exact in zip(_scores(case, expected, "_bfloat16"), (scores, likely), strict=True)
        )
        found = dict(_read(case, entity, scores) for entity in got)
        if len(found) != len(got):
            raise WrongAnswer("an entity is there twice")
        if (ids := case.get("ids")) is not None:
            for entity, (_, _, label) in zip(got, found, strict=True):
                if entity.get("id") != ids[label]:
                    raise WrongAnswer(f"an entity with label {label} has the id {str(entity.get('id'))[:100]!r}")
        errors = {span: abs(score - float(scores[span])) for span, score in found.items()}
        if case["measures"] == "scores":
            # one that words do not propose should not be there
            errors = {span: max(error, LOW - float(likely[span])) for span, error in errors.items()}
            missing = [span for span in _requested(case, scores) if likely[span] > LOW and span not in found]
            # the score of one that is missing is at most the threshold
            errors |= {span: float(likely[span]) - LOW for span in missing}
            notes = tuple(f"{_named(case, span)} is missing; its score is {scores[span]:.6f}" for span in missing)
            metrics = {"score_max": max(errors.values())} if errors else {}
            samples = {
                "error": np.array(list(errors.values()), np.float64),
                "noise": np.array([float(max(noise[span], noise_likely[span])) for span in errors], np.float64),
            }
            return Compared(metrics, notes, samples)
        if any(before[0] > after[0] for before, after in pairwise(found)):
            raise WrongAnswer("the entities are not in the order of the text")
        moved = shift(case, found.keys(), scores, likely)
        lost = max(float(noise.max(initial=0.0)), float(noise_likely.max(initial=0.0)), SMALLEST_NOISE)
        metrics = {"decoded_shift": moved, "noise_shift": moved / lost}
        if errors:
            metrics["score_max"] = max(errors.values())
        return Compared(metrics, tuple(_disagreements(case, found, scores, likely)))

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


def _texts(case: Case) -> int:
    """Return how many texts of a request a case is: one for each group of spans, if it measures scores."""
    return len(case["span_groups"]) if case["measures"] == "scores" else 1


def _labels(cases: Sequence[Case]) -> dict[str, Any]:
    """Return the labels of a request for each of the cases, which have their label set in common, if they have one."""
    if "label_set" not in cases[0]:
        return {"labels_per_text": [case["labels"] for case in cases]}
    ids = {} if cases[0]["whole"] else {"candidates_per_text": [case["ids"] for case in cases]}
    return {"label_set": cases[0]["label_set"], **ids}


Span = tuple[int, int, int]
"""First word, further words, number of the label."""


def shift(case: Mapping[str, Any], chosen: Any, scores: Scores, likely: Scores | None = None) -> float:
    """Return how far scores have to move for ``chosen`` to be what a greedy search keeps; infinite if no move helps.

    A search keeps the best first, and whatever nothing kept overlaps. So everything kept is above the threshold, no two
    of it are in each other's way, and whatever else is above the threshold has something better in its way. What has to be above the
    threshold is ``likely``, where that is not the score itself: see ``_scores``.
    """
    kept: list[Span] = sorted(chosen)
    likely = scores if likely is None else likely
    threshold = np.float64(np.float32(case["threshold"]))
    moves = [0.0, *(float(threshold - likely[span]) for span in kept)]
    if any(_exclude(case, one, other) for place, one in enumerate(kept) for other in kept[:place]):
        return float("inf")
    words = scores.shape[0]
    taken = set(kept)
    for span in zip(*(axis.tolist() for axis in np.nonzero(likely > threshold)), strict=True):
        if span in taken or span[0] + span[1] >= words:
            continue
        ways = [float(likely[span] - threshold)]
        # both may move: half of the distance each
        ways += [float(scores[span] - scores[other]) / 2 for other in kept if _exclude(case, span, other)]
        moves.append(min(ways))
    return max(moves)


def _exclude(case: Mapping[str, Any], one: Span, other: Span) -> bool:
    """Return whether the library never keeps both."""
    if one[:2] == other[:2]:
        return not case["multi_label"]
    (first, further), (begin, more) = one[:2], other[:2]
    last, end = first + further, begin + more
    if first > end or begin > last:
        return False
    nested = (first <= begin and end <= last) or (begin <= first and last <= end)
    return bool(case["flat_ner"] or not nested)


def _requested(case: Mapping[str, Any], scores: Scores) -> Iterator[Span]:
    """Enumerate the spans of the groups that were requested, with every label."""
    _, width, labels = scores.shape
    groups, begins, ends = set(case["span_groups"]), *_own_places(case)
    for first in begins:
        if first % width in groups:
            for further in range(width):
                if first + further not in ends:
                    continue
                for label in range(labels):
                    yield first, further, label


def _spans(case: Mapping[str, Any], group: int) -> list[dict[str, int]]:
    """Return the spans of a group as a request has them."""
    words, width = case["words"], case["width"]
    begins, ends = _own_places(case)
    return [
        {"start": words[first][0], "end": words[last][1]}
        for first in range(group, len(words), width)
        for last in range(first, min(first + width, len(words)))
        if first in begins and last in ends
    ]


def _own_places(case: Mapping[str, Any]) -> tuple[list[int], set[int]]:
    """Return the words that begin where no other one does, and those that end where no other one does.

    Words that stanza reads in one token of the text have its offsets: a request cannot mean one of them.
    """
    words = case["words"]
    starts, ends = Counter(start for start, _ in words), Counter(end for _, end in words)
    return (
        [number for number, (start, _) in enumerate(words) if starts[start] == 1],
        {number for number, (_, end) in enumerate(words) if ends[end] == 1},
    )


def _read(case: Mapping[str, Any], entity: Any, scores: Scores) -> tuple[Span, float]:
    """Return the words and the label that an entity means, and its score.

    Where several words are at the same place, they are those whose score is next to the entity's.
    """
    try:
        start, end, text, label, score = (entity[name] for name in ("start", "end", "text", "label", "score"))
        if case["text"][start:end] != text:
            raise WrongAnswer(f"an entity's text is not what is at {start} to {end}")
        firsts = [number for number, word in enumerate(case["words"]) if word[0] == start]
        lasts = [number for number, word in enumerate(case["words"]) if word[1] == end]
        number = different(case["labels"]).index(label)
        probability = float(score)
    except (KeyError, TypeError, ValueError) as error:
        raise WrongAnswer(f"not an entity of this text: {str(entity)[:100]} ({type(error).__name__})") from None
    spans = [(first, last - first, number) for first in firsts for last in lasts if 0 <= last - first < case["width"]]
    if not spans or not 0.0 <= probability <= 1.0:
        raise WrongAnswer(f"not an entity that this model can find: {str(entity)[:100]}")
    return min(spans, key=lambda span: abs(float(scores[span]) - probability)), probability


def _disagreements(
    case: Mapping[str, Any], found: Mapping[Span, float], scores: Scores, likely: Scores
) -> Iterator[str]:
    """Word every entity that only one side has, with its distance to the threshold."""
    expected = dict(_read(case, entity, scores) for entity in case["entities"])
    for span in sorted(found.keys() ^ expected.keys()):
        side = "the library has" if span in expected else "the server has"
        distance = float(likely[span]) - case["threshold"]
        yield f"only {side} {_named(case, span)}; the library's score is {distance:+.6f} from the threshold"


def _named(case: Mapping[str, Any], span: Span) -> str:
    """Name a span by offsets and label's number; texts do not belong into a log."""
    first, further, label = span
    return f"{case['words'][first][0]}:{case['words'][first + further][1]} (label {label})"


def _scores(case: Mapping[str, Any], expected: Arrays, dtype: str = "") -> tuple[Scores, Scores]:
    """Return the score of every span of a case, `[words, width, labels]`, and what has to be above the threshold for it to count.

    That is the score itself. Of a span that words only propose it is the lower one of its score and of the best that any label has
    by its words: both have to be above.
    """
    scores = _sigmoid(expected[f"logits{dtype}"])
    if not case.get("by_word"):
        return scores, scores
    by_words = span_scores(scores, case["width"])
    if (logits := expected.get(f"span_logits{dtype}")) is None:
        return by_words, by_words
    scores = _sigmoid(logits)
    return scores, np.minimum(scores, by_words.max(axis=2, keepdims=True))


def span_scores(words: Scores, width: int) -> Scores:
    """Return `[words, width, labels]` for the scores `[words, labels, 3]` of a model that scores words; 0 beyond the last word.

    A span has the lowest of these scores: its first word's as start, its last word's as end, and each word's as inside.
    """
    start, end, inside = np.moveaxis(words, 2, 0)
    count, labels = start.shape
    found = np.zeros((count, width, labels))
    lowest = inside.copy()
    for further in range(min(width, count)):
        lowest = np.minimum(lowest[: count - further], inside[further:])
        found[: count - further, further] = np.minimum(lowest, np.minimum(start[: count - further], end[further:]))
    return found


def _sigmoid(logits: Array) -> Scores:
    """Return probabilities; in float64, so that this side adds nothing."""
    values = logits.astype(np.float64)
    result: Scores = np.where(values >= 0, 1.0, np.exp(-np.abs(values))) / (1.0 + np.exp(-np.abs(values)))
    return result


PARITY = Entities()
