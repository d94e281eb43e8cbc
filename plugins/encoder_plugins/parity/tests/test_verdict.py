"""What is asked, and what is made of the answers."""

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

from encoder_plugins.models.sentence_transformer import parity
from encoder_plugins.models.sentence_transformer.checkpoint import Checkpoint
from encoder_plugins.parity import verdict as comparison
from encoder_plugins.parity.verdict import Batch, Bound, Finding, Reference, Verdict

MODEL = Checkpoint(
    dimensions=4,
    normalize=True,
    max_tokens=256,
    max_positions=512,
    padding_token=None,
    lower_case=False,
    prompts={"query": "q: ", "document": "", "other": "o: "},
    default_prompt=None,
)
CASES = parity.cases(MODEL)
TOLERANCE = parity.PARITY.tolerances["float32"]


def reference(**expected: list[float]) -> Reference:
    arrays = {name: np.array(numbers, dtype=np.float32) for name, numbers in expected.items()}
    cases = tuple(
        {"id": name, "text": name, "prompt_name": None, "dimensions": None, "normalize": None} for name in arrays
    )
    return Reference("sha256:a", "sha256:r", "sentence_transformer", cases, arrays)


def verdict(found: Reference, *answers: Any) -> Verdict:
    batch = Batch(found.cases, "float")
    findings = [
        finding for answer in answers for finding in comparison.examine(parity.PARITY, found, "alone", batch, answer)
    ]
    return comparison.judge(findings, TOLERANCE, found, {"uid": "u"})


def test_case_ids_are_unique_and_every_choice_of_a_request_has_a_case() -> None:
    assert not [name for name, count in Counter(case["id"] for case in CASES).items() if count > 1]
    assert {"query", "other"} <= {case["prompt_name"] for case in CASES}
    assert {1, 2, 4} <= {case["dimensions"] for case in CASES}
    assert {None, True, False} == {case["normalize"] for case in CASES}
    assert len(CASES) >= 48


def test_the_longest_case_is_far_beyond_a_short_limit_and_bounded_for_a_long_one() -> None:
    words = {case["id"]: len(case["text"].split()) for case in CASES}
    assert words["beyond-limit"] == 512
    assert words["long"] == 128


@pytest.mark.parametrize("position", range(4))
def test_every_pass_asks_every_case_once_and_never_mixes_settings(position: int) -> None:
    step = comparison.plan(parity.PARITY, CASES)[position]
    asked = [case["id"] for batch in step.batches for case in batch.cases]
    assert sorted(asked) == sorted(case["id"] for case in CASES)
    assert all(len({parity.PARITY.group(case) for case in batch.cases}) == 1 for batch in step.batches)


def test_the_passes_differ_in_order_company_and_concurrency() -> None:
    alone, together, concurrent, shuffled = comparison.plan(parity.PARITY, CASES)
    assert {len(batch.cases) for batch in alone.batches} == {1}
    assert max(len(batch.cases) for batch in together.batches) >= 40
    assert (alone.at_once, concurrent.at_once, shuffled.at_once) == (1, 16, 16)
    assert comparison.plan(parity.PARITY, CASES)[3] == shuffled


def test_equal_answers_pass_with_their_numbers() -> None:
    found = verdict(reference(a=[1, 0], b=[0, 1]), {"embeddings": [[1, 0], [0, 1]]})
    assert (found.result, found.cases, found.binding) == ("Passed", 2, {"uid": "u"})
    assert [metric["name"] for metric in found.metrics] == ["cosine", "max_abs_error"]


@pytest.mark.parametrize(
    "answer",
    [
        {"embeddings": [[1, 0], [0.1, 1]]},
        {"embeddings": [[0, 1], [1, 0]]},
        {"embeddings": [[1, 0]]},
        {"embeddings": [[1, 0], [0, 1, 0]]},
        {"embeddings": [[1, 0], [0, float("nan")]]},
        {"embeddings": [[1, 0], [0, float("inf")]]},
        {"embeddings": [[1, 0], [0, None]]},
        {"embeddings": [[1, 0], [0, 0]]},
        {"embeddings": "no"},
        {"embedding": []},
        [],
        None,
    ],
)
def test_any_other_answer_fails(answer: Any) -> None:
    found = verdict(reference(a=[1, 0], b=[0, 1]), answer)
    assert found.result == "Failed"
    assert found.worst


def test_one_bad_answer_among_good_ones_fails_and_is_named_first() -> None:
    good, bad = {"embeddings": [[1, 0], [0, 1]]}, {"embeddings": [[1, 0], [0, 0.9]]}
    found = verdict(reference(a=[1, 0], b=[0, 1]), good, good, bad)
    assert found.result == "Failed"
    assert found.worst[0] == "b"
    assert found.metrics[1]["value"].startswith("0.1")


def test_no_finding_never_passes() -> None:
    assert comparison.judge([], TOLERANCE, reference(a=[1]), {}).result == "Failed"


def test_thresholds_replace_the_plugins_own() -> None:
    moved = comparison.bounds(parity.PARITY, "bfloat16", {"cosine": "0.5"})
    assert moved[0] == Bound("cosine", at_least=0.5)
    assert moved[1] == parity.PARITY.tolerances["bfloat16"][1]


@pytest.mark.parametrize(
    ("dtype", "overrides"),
    [("int4", {}), ("float32", {"cos": "1"}), ("float32", {"cosine": "nan"}), ("float32", {"cosine": "x"})],
)
def test_thresholds_that_say_nothing_are_refused(dtype: str, overrides: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"dtype|metric|finite|float"):
        comparison.bounds(parity.PARITY, dtype, overrides)


def test_a_verdict_fits_into_two_kilobytes_whatever_it_says() -> None:
    finding = Finding(case="a", asked="alone", wrong="ü\n" * 5_000)
    text = comparison.judge([finding], TOLERANCE, reference(a=[1]), {"uid": "x" * 500}).encode()
    assert len(text.encode()) <= 2048
    assert json.loads(text)["binding"] == {"uid": "x" * 500}


def test_vectors_of_any_length_are_compared_relative_to_it() -> None:
    found = parity.PARITY.compare({}, np.array([300.003, 400], np.float32), np.array([300, 400], np.float32))
    assert found.metrics["max_abs_error"] == pytest.approx(6e-6, rel=0.1)
