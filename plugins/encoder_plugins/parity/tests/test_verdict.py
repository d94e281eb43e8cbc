"""Which requests are sent, and what the verdict over the answers is."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from encoder_plugins import catalog
from encoder_plugins.artifact.reference import Reference
from encoder_plugins.errors import Unmeasurable
from encoder_plugins.families.embedding.cases import cases
from encoder_plugins.families.embedding.config import EmbeddingConfig
from encoder_plugins.families.embedding.parity import BASE64, FLOAT, OPENAI
from encoder_plugins.models.sentence_transformer.checkpoint import CHECKPOINT
from encoder_plugins.models.sentence_transformer.parity import PARITY
from encoder_plugins.parity import plan as plans
from encoder_plugins.parity import verdict as verdicts
from encoder_plugins.parity.plan import Batch
from encoder_plugins.parity.protocol import Threshold, Variant
from encoder_plugins.parity.verdict import Finding, Verdict
from encoder_plugins.serving import limits

MODEL = EmbeddingConfig(
    dimensions=4,
    normalize=True,
    max_tokens=256,
    max_positions=512,
    padding_token=None,
    lower_case=False,
    prompts={"query": "q: ", "document": "", "other": "o: "},
    default_prompt=None,
)
CASES = cases(MODEL)
# the bounds of vectors; the references here have no scores
TOLERANCE = PARITY.tolerances["float32"][:2]


def reference(**expected: list[float]) -> Reference:
    arrays = {name: np.array(numbers, dtype=np.float32) for name, numbers in expected.items()}
    cases = tuple(
        {"id": name, "text": name, "prompt_name": None, "dimensions": None, "normalize": None} for name in arrays
    )
    return Reference(
        artifact="sha256:a",
        digest="sha256:r",
        plugin="sentence_transformer",
        cases=cases,
        expected={name: {"vector": value} for name, value in arrays.items()},
    )


def verdict(found: Reference, *answers: Any) -> Verdict:
    batch = Batch(found.cases, FLOAT)
    contents = [json.dumps({"data": answer}).encode() for answer in answers]
    findings = [finding for content in contents for finding in verdicts.examine(PARITY, found, "alone", batch, content)]
    return verdicts.judge(findings, TOLERANCE, found, {"uid": "u"})


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
def test_every_pass_sends_every_case_once_and_never_mixes_settings(position: int) -> None:
    step = plans.plan(PARITY, CASES)[position]
    sent = [case["id"] for batch in step.batches for case in batch.cases]
    assert sorted(sent) == sorted(case["id"] for case in CASES)
    assert all(len({PARITY.group(case, batch.variant) for case in batch.cases}) == 1 for batch in step.batches)


def test_the_passes_differ_in_order_company_and_concurrency() -> None:
    alone, together, concurrent, shuffled = plans.plan(PARITY, CASES)
    assert {len(batch.cases) for batch in alone.batches} == {1}
    assert max(len(batch.cases) for batch in together.batches) >= 40
    steps = (alone, together, concurrent, shuffled)
    assert [step.concurrency for step in steps] == [1, 1, 16, 16]
    assert max(len(batch.cases) for batch in shuffled.batches) == 8
    order = [[case["id"] for batch in step.batches for case in batch.cases] for step in (alone, concurrent)]
    # of each way to express a request, the last case comes first
    assert order[1][0] == order[0][-1] == CASES[-1]["id"]
    assert plans.plan(PARITY, CASES)[3] == shuffled
    assert {batch.variant for step in steps for batch in step.batches} == {
        FLOAT,
        BASE64,
        OPENAI,
    }


def test_every_variant_has_a_pass() -> None:
    class Many(type(PARITY)):  # type: ignore[misc]
        def variants(self) -> list[Variant]:
            return [replace(FLOAT, name=f"v{number}") for number in range(6)]

    used = [{batch.variant.name for batch in step.batches} for step in plans.plan(Many(CHECKPOINT), CASES)]
    assert used == [{f"v{number}"} for number in range(6)]


def test_cases_that_a_variant_cannot_express_are_not_mixed_either() -> None:
    class Two(type(PARITY)):  # type: ignore[misc]
        def variants(self) -> list[Variant]:
            return [FLOAT, OPENAI]

    _, together, _, shuffled = plans.plan(Two(CHECKPOINT), CASES)
    for batch in (*together.batches, *shuffled.batches):
        assert len({PARITY.group(case, batch.variant) for case in batch.cases}) == 1
    groups = {PARITY.group(case, OPENAI) for case in CASES} - {None}
    assert len([batch for batch in together.batches if batch.variant == OPENAI]) == len(groups)


def test_a_variant_that_separates_cases_gets_requests_of_its_own_groups() -> None:
    class Separate(type(PARITY)):  # type: ignore[misc]
        def variants(self) -> list[Variant]:
            return [FLOAT, OPENAI]

        def group(self, case: Any, variant: Variant) -> object:
            return case["id"] if variant == OPENAI else "all"

    alike = [CASES[0] | {"id": str(number)} for number in range(3)]
    _, together, _, _ = plans.plan(Separate(CHECKPOINT), alike)
    assert [len(batch.cases) for batch in together.batches] == [1, 1, 1]


def test_a_request_has_no_more_texts_than_every_plugin_takes() -> None:
    assert min(limits.defaults(plugin)["texts"] for plugin in catalog.plugins().values()) >= plans.MAX_TEXTS >= 40
    for count, requests in ((plans.MAX_TEXTS, 1), (plans.MAX_TEXTS + 1, 2)):
        same = [CASES[0] | {"id": str(number)} for number in range(count)]
        assert len(plans.plan(PARITY, same)[1].batches) == requests


def test_requests_keep_the_limits_that_a_server_was_started_with() -> None:
    bounds = {"texts": 3, "characters_per_text": 200, "characters": 300, "body_bytes": 900}
    few = plans.answerable(PARITY, CASES, bounds)
    left_out = {case["id"] for case in CASES} - {case["id"] for case in few}
    assert {"long", "beyond-limit"} <= left_out
    assert all(len(case["text"]) > 100 or case["documents"] for case in CASES if case["id"] in left_out)
    bodies = [
        PARITY.body(batch.cases, batch.variant) for step in plans.plan(PARITY, few, bounds) for batch in step.batches
    ]
    assert all(plans.within(body, bounds) for body in bodies)
    lists = [body.get("input") or body.get("data", {}).get("texts", ()) for body in bodies]
    assert max(map(len, lists)) == 3
    # without limits nothing changes
    assert plans.answerable(PARITY, CASES, {}) == CASES
    assert plans.plan(PARITY, CASES, {}) == plans.plan(PARITY, CASES)


KINDS: list[dict[str, Any]] = [
    {"id": "query", "input_type": "query", "text": "a", "documents": None, "normalize": None},
    {"id": "document", "input_type": "document", "text": "b", "documents": [], "normalize": None},
    {"id": "score", "input_type": "query", "text": "c", "documents": ["d"], "normalize": None},
    {"id": "raw", "input_type": "query", "text": "e", "documents": None, "normalize": False},
    {"id": "unit", "input_type": "query", "text": "f", "documents": None, "normalize": True},
    {"id": "more", "input_type": "query", "text": "g", "documents": None, "normalize": None},
]


@pytest.mark.parametrize(
    ("left_out", "why"),
    [
        ((), None),
        (("query",), None),
        # half is enough, but not of one kind
        (("query", "more"), None),
        (("document",), 'let 5 of 6 cases through, and none with input_type "document"'),
        (("score",), "let 5 of 6 cases through, and none with documents"),
        (("raw", "unit"), "let 4 of 6 cases through, and none with normalize false, normalize true"),
        (("raw", "unit", "score"), "none with documents, normalize false, normalize true"),
        (("query", "more", "raw", "unit"), "let 2 of 6 cases through; at least half must be sent"),
        (tuple(case["id"] for case in KINDS), "let 0 of 6 cases through; at least half must be sent"),
    ],
)
def test_half_of_the_cases_and_each_kind_must_be_sent(left_out: tuple[str, ...], why: str | None) -> None:
    found = plans.lacking(KINDS, [case for case in KINDS if case["id"] not in left_out])
    assert found is None if why is None else why in (found or "")


def test_too_few_cases_cannot_pass_but_can_fail() -> None:
    def limited(result: verdicts.Result, sent: int) -> tuple[str, str]:
        verdict = verdicts.with_limits(Verdict(result=result, message="x" * 9_000), [CASES[0]] * 5, [CASES[0]] * sent)
        # the reason stays when the message is cut
        return verdict.result, json.loads(verdict.encode())["message"][:40]

    assert limited("Passed", 3) == ("Passed", "x" * 40)
    assert limited("Passed", 2) == ("Inconclusive", "the server's limits let 2 of 5 cases thr")
    assert limited("Inconclusive", 2) == ("Inconclusive", "the server's limits let 2 of 5 cases thr")
    assert limited("Failed", 2) == ("Failed", "x" * 40)
    short = verdicts.with_limits(Verdict(result="Passed", message="fine"), [CASES[0]] * 5, [CASES[0]] * 4)
    assert short.message == "fine; not sent because of the server's limits: 1 of 5 cases"


def test_a_case_of_too_many_documents_is_left_out() -> None:
    body = {"data": {"query": "a", "documents": ["b"] * 5}}
    assert plans.within(body, {"documents": 5, "texts": 1})
    assert not plans.within(body, {"documents": 4})


def test_texts_of_lists_count_for_the_limits_of_characters() -> None:
    body = {"data": {"texts": ["four", "three"], "pairs": [{"query": "q", "documents": ["d"]}]}}
    assert plans.within(body, {"characters": 11, "characters_per_text": 5})
    assert not plans.within(body, {"characters": 10})
    assert not plans.within(body, {"characters_per_text": 4})
    # a body without any text keeps every limit of characters
    assert plans.within({"data": {}}, {"characters": 0, "characters_per_text": 0})


def test_the_shuffled_pass_gives_most_cases_other_neighbours() -> None:
    def neighbours(batches: Any) -> set[tuple[str, str]]:
        return {(one["id"], two["id"]) for batch in batches for one, two in pairwise(batch.cases)}

    _, together, _, shuffled = plans.plan(PARITY, CASES)
    kept = neighbours(together.batches) & neighbours(shuffled.batches)
    assert len(kept) < len(neighbours(shuffled.batches)) / 4


def test_a_case_that_a_variant_cannot_express_is_sent_in_the_first_one() -> None:
    concurrent = plans.plan(PARITY, CASES)[2]
    by_variant: dict[Any, list[Any]] = {batch.variant: [] for batch in concurrent.batches}
    for batch in concurrent.batches:
        by_variant[batch.variant] += batch.cases
    assert all(case["prompt_name"] or case["documents"] or case["normalize"] is not None for case in by_variant[FLOAT])
    assert all("normalize" not in PARITY.body([case], OPENAI) for case in by_variant[OPENAI])
    half = next(case for case in by_variant[OPENAI] if case["id"] == "dimensions-half")
    assert PARITY.body([half], OPENAI) == {"input": [half["text"]], "encoding_format": "base64", "dimensions": 2}


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


def test_a_verdict_says_what_was_measured() -> None:
    found = verdict(reference(a=[1, 0], b=[0, 1]), {"embeddings": [[1, 0], [0, 1 + 3e-7]]})
    assert found.message == (
        "matches the reference within tolerance (min cosine 1, limit 0.99999; max |Δ| 3.6e-07, limit 1e-05)"
    )
    found = verdict(reference(a=[1, 0], b=[0, 1]), {"embeddings": [[1, 0], [0, 1.2]]})
    assert found.message == "1 of 2 comparisons are outside the tolerance (max |Δ| 0.2, limit 1e-05)"


def test_the_worst_cases_are_named_wrong_ones_first_then_the_nearest_to_the_first_threshold() -> None:
    measured = {"a": (1.0, 3e-6), "b": (0.999_995, 1e-6), "c": (0.999_998, 2e-6), "d": (1.0, 0.5)}
    findings = [
        Finding(case=name, sent="alone", metrics=dict(zip(("cosine", "max_abs_error"), numbers, strict=True)))
        for name, numbers in measured.items()
    ]
    findings.append(Finding(case="e", sent="alone", wrong="no vector"))
    assert verdicts.judge(findings[:3], TOLERANCE, reference(a=[1]), {}).worst == ("b", "c", "a")
    findings.append(Finding(case=verdicts.POOLED, sent="alone", metrics={"cosine": 0.1}))
    assert verdicts.judge(findings, TOLERANCE, reference(a=[1]), {}).worst == ("e", "d", "b", "c", "a")
    findings.append(Finding(case="f", sent="alone", wrong="no vector"))
    found = verdicts.judge(findings, TOLERANCE, reference(a=[1]), {})
    assert found.worst == ("e", "f", "d", "b", "c")
    # a report has their number, and none where all answers were compared
    assert json.loads(found.encode())["wrong"] == 2
    assert "wrong" not in json.loads(verdicts.judge(findings[:3], TOLERANCE, reference(a=[1]), {}).encode())


def test_samples_are_pooled_over_the_cases_that_have_them() -> None:
    class Pools(type(PARITY)):  # type: ignore[misc]
        def summarise(self, samples: Mapping[str, Any]) -> dict[str, float]:
            return {name: float(values.sum()) for name, values in samples.items()}

    def finding(**samples: list[float]) -> Finding:
        return Finding(case="c", sent="alone", samples={name: np.array(values) for name, values in samples.items()})

    found = [finding(a=[1, 2], b=[10]), Finding(case="w", sent="alone", wrong="no vector"), finding(a=[4])]
    (together,) = verdicts.pooled(Pools(CHECKPOINT), "alone", found)
    assert together == Finding(case=verdicts.POOLED, sent="alone", metrics={"a": 7.0, "b": 10.0})
    assert verdicts.pooled(Pools(CHECKPOINT), "alone", found[1:2]) == []


def test_no_finding_never_passes() -> None:
    assert verdicts.judge([], TOLERANCE, reference(a=[1]), {}).result == "Inconclusive"


def test_a_bound_that_no_case_measured_is_inconclusive() -> None:
    findings = [Finding(case="a", sent="alone", metrics={"cosine": 1.0})]
    found = verdicts.judge(findings, TOLERANCE, reference(a=[1]), {})
    assert found.result == "Inconclusive"
    assert "max_abs_error" in found.message
    # a failure is known without the other threshold
    findings = [Finding(case="a", sent="alone", metrics={"cosine": 0.5})]
    assert verdicts.judge(findings, TOLERANCE, reference(a=[1]), {}).result == "Failed"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_reference_that_is_not_finite_cannot_be_compared_with(value: float) -> None:
    with pytest.raises(Unmeasurable, match=r"case b \(vector\)"):
        verdicts.require_finite(reference(a=[1, 0], b=[0, value]))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("metric", ["cosine", "max_abs_error"])
def test_a_metric_that_is_not_finite_never_passes_and_is_the_worst(metric: str, value: float) -> None:
    good = {"cosine": 1.0, "max_abs_error": 0.0}
    findings = [
        Finding(case="b", sent="alone", metrics=good),
        Finding(case="a", sent="alone", metrics=good | {metric: value}),
        Finding(case="c", sent="alone", metrics=good | {metric: 0.5}),
    ]
    for ordered in (findings, findings[::-1]):
        found = verdicts.judge(ordered, TOLERANCE, reference(a=[1]), {})
        assert found.result == "Failed"
        assert {entry["name"]: entry["value"] for entry in found.metrics}[metric] == f"{value:g}"


def test_rounding_is_measured_in_what_the_library_loses() -> None:
    exact, rounded = np.linspace(1, 2, 32, dtype=np.float32), np.linspace(1, 2, 32, dtype=np.float32)
    rounded[::2] += 0.02
    expected = {"vector": exact, "vector_bfloat16": rounded}
    as_much = exact.copy()
    as_much[1::2] += 0.02
    ratio = PARITY.compare({}, as_much, expected).metrics["noise_ratio"]
    assert ratio == pytest.approx(1.0, abs=0.01)
    ratio = PARITY.compare({}, exact + 0.06, expected).metrics["noise_ratio"]
    assert not PARITY.tolerances["bfloat16"][2].holds(ratio)


@pytest.mark.parametrize(("side", "better", "worse"), [("at_least", 0.6, 0.4), ("at_most", 0.4, 0.6)])
def test_a_threshold_holds_at_its_limit_and_moves_on_its_side(side: str, better: float, worse: float) -> None:
    def of(value: float) -> Threshold:
        return Threshold("m", at_least=value) if side == "at_least" else Threshold("m", at_most=value)

    limit = of(0.5)
    assert (limit.holds(0.5), limit.holds(better), limit.holds(worse)) == (True, True, False)
    assert limit.badness(math.nan) > limit.badness(worse) > limit.badness(better)
    assert limit.moved(worse) == of(worse)
    assert limit.moved(worse).limit == worse


def test_thresholds_replace_the_plugins_own() -> None:
    moved = verdicts.tolerance_of(PARITY, "bfloat16", {"cosine": "0.5"})
    assert (moved[0].metric, moved[0].at_least, moved[0].limit) == ("cosine", 0.5, 0.5)
    assert moved[1] == PARITY.tolerances["bfloat16"][1]


def test_a_quantized_engine_is_judged_by_bounds_of_its_own_and_the_message_says_so() -> None:
    assert verdicts.tolerance_of(PARITY, "bfloat16", {}, quantization="fp8") == PARITY.tolerances["fp8"]
    assert verdicts.tolerance_of(PARITY, "float32", {"cosine": "0.5"}, quantization="fp8")[0].limit == 0.5
    with pytest.raises(ValueError, match=r"no tolerance for quantization 'int4'; there is: .*fp8"):
        verdicts.tolerance_of(PARITY, "bfloat16", {}, quantization="int4")
    with pytest.raises(ValueError, match="bfloat16 has no metric cosin; there is: cosine"):
        verdicts.tolerance_of(PARITY, "bfloat16", {"cosin": "0.5"})
    verdict = verdicts.judge([], TOLERANCE, reference(a=[1]), {})
    assert verdicts.with_quantization(verdict, "fp8").message == f"bounds of fp8: {verdict.message}"
    assert verdicts.with_quantization(verdict, None) is verdict


@pytest.mark.parametrize(
    ("dtype", "overrides"),
    [("int4", {}), ("float32", {"cos": "1"}), ("float32", {"cosine": "nan"}), ("float32", {"cosine": "x"})],
)
def test_thresholds_that_say_nothing_are_refused(dtype: str, overrides: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"dtype|metric|finite|float"):
        verdicts.tolerance_of(PARITY, dtype, overrides)


def test_a_verdict_fits_into_two_kilobytes_whatever_it_says() -> None:
    finding = Finding(case="a", sent="alone", wrong="ü\n" * 5_000)
    text = verdicts.judge([finding], TOLERANCE, reference(a=[1]), {"uid": "x" * 500}).encode()
    assert len(text.encode()) <= 2048
    assert json.loads(text)["binding"] == {"uid": "x" * 500}
    # no more of the message is cut than must be
    finding = Finding(case="a", sent="alone", wrong="x" * 5_000)
    assert len(verdicts.judge([finding], TOLERANCE, reference(a=[1]), {}).encode()) == 2048


def test_vectors_of_any_length_are_compared_relative_to_it() -> None:
    found = PARITY.compare({}, np.array([300.003, 400], np.float32), {"vector": np.array([300, 400], np.float32)})
    assert found.metrics["max_abs_error"] == pytest.approx(6e-6, rel=0.1)


def test_a_message_is_cut_until_the_verdict_fits_and_no_shorter() -> None:
    # as JSON, an escaped character takes six bytes
    for character, size in (("x", 1), ("Δ", 6)):
        text = Verdict(result="Failed", message=character * 9_000).encode()
        kept = json.loads(text)["message"]
        assert len(text) <= 2048 < len(text) + 200
        assert kept == character * len(kept)
        assert len(kept) * size > 1_500
    found = json.loads(Verdict(result="Passed", message="fine").encode())
    assert (found["cases"], "wrong" in found) == (0, False)
    with pytest.raises(ValueError, match="binding alone"):
        Verdict(result="Passed", message="fine", binding={"name": "x" * 3_000}).encode()


def test_a_mode_without_a_tolerance_is_named_as_what_it_is() -> None:
    with pytest.raises(ValueError, match="no tolerance for dtype 'float8'"):
        verdicts.tolerance_of(PARITY, "float8", {})
    with pytest.raises(ValueError, match="no tolerance for quantization 'int4'"):
        verdicts.tolerance_of(PARITY, "bfloat16", {}, quantization="int4")
