"""What an EncoderModel may serve, and what it may not: verdicts, gates and rollouts, on the real client and a fake API server."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta

import pytest

from encoder_operator.tests.fake_cluster import Json
from encoder_operator.tests.harness import (
    Harness,
    annotate,
    controller,
    encoder_model,
    failing_report,
    passing_report,
    report,
)


@pytest.mark.complaint(17)
async def test_a_first_revision_that_fails_never_serves_and_leaves_no_pod() -> None:
    harness = Harness()
    harness.parity = failing_report
    await harness.settle()
    assert harness.condition("Verified") == ("False", "ParityFailed")
    assert harness.condition("Ready") == ("False", "ParityFailed")
    assert "cosine 0.812 (threshold 0.99999)" in next(
        e["message"] for e in harness.status["conditions"] if e["type"] == "Verified"
    )
    assert harness.status["phase"] == "Failed"
    assert harness.status["candidateParity"]["result"] == "Failed"
    assert harness.fake.of("pods", component="serving") == []
    assert [event["reason"] for event in harness.fake.of("events")].count("ParityFailed") == 1


async def test_a_failed_update_goes_back_to_the_verified_template_byte_for_byte() -> None:
    harness = Harness(encoder_model(replicas=2))
    await harness.settle()
    first = harness.status["activeRevision"]
    template = copy.deepcopy(harness.fake.of("deployments")[0]["spec"]["template"])
    harness.change(maxModelLen=64)
    harness.parity = failing_report
    for _ in range(30):
        await harness.reconcile()
        harness.jobs()
        harness.deployment()
        assert set(harness.endpoints()) == {first}
    assert harness.fake.of("deployments")[0]["spec"]["template"] == template
    assert harness.condition("Available") == ("True", "Serving")
    assert harness.condition("UpToDate") == ("False", "ParityFailed")
    assert harness.condition("Verified") == ("True", "ParityPassed")
    assert harness.condition("Degraded") == ("True", "ParityFailed")
    assert harness.status["phase"] == "Degraded"
    assert harness.status["activeRevision"] == first
    assert harness.status["candidateRevision"] != first


async def test_many_failed_edits_keep_the_serving_revision_and_its_verdict() -> None:
    harness = Harness()
    await harness.settle()
    first, pods = harness.status["activeRevision"], harness.serving()
    harness.parity = failing_report
    for length in range(64, 76):
        harness.change(maxModelLen=length)
        await harness.settle()
        assert harness.endpoints() == [first]
        kept = records(harness, "revision")
        assert first in kept
        assert first in records(harness, "verdict")
        assert len(kept) <= 5
    harness.reconciler = harness.operator()
    harness.edit(lambda live: live["spec"]["serving"].pop("maxModelLen"))
    compared = len(harness.fake.of("jobs", component="parity"))
    await harness.reconcile()
    assert harness.condition("Ready") == ("True", "Ready")
    await harness.settle()
    assert (harness.status["activeRevision"], harness.serving()) == (first, pods)
    assert len(harness.fake.of("jobs", component="parity")) == compared


async def test_many_failed_edits_push_out_no_earlier_revision_that_passed() -> None:
    harness = Harness()
    passed = []
    for length in (32, 33, 34):
        harness.change(maxModelLen=length)
        await harness.settle()
        passed.append(harness.status["activeRevision"])
    harness.parity = failing_report
    for length in range(64, 76):
        harness.change(maxModelLen=length)
        await harness.settle()
        assert set(passed) <= records(harness, "revision") & records(harness, "verdict")
    compared = len(harness.fake.of("jobs", component="parity"))
    harness.change(maxModelLen=32)
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")
    assert harness.status["activeRevision"] == passed[0]
    assert len(harness.fake.of("jobs", component="parity")) == compared


def records(harness: Harness, component: str) -> set[str]:
    """Return the revisions that records of a kind speak of."""
    found = harness.fake.of("controllerrevisions", component=component)
    return {record["metadata"]["labels"]["encoders.dev/revision"] for record in found}


async def test_reverting_to_an_earlier_spec_needs_no_new_parity_check() -> None:
    harness = Harness()
    await harness.settle()
    first = harness.status["activeRevision"]
    harness.change(maxModelLen=64)
    await harness.settle()
    harness.edit(lambda live: live["spec"]["serving"].pop("maxModelLen"))
    harness.parity = failing_report
    await harness.settle()
    assert harness.status["activeRevision"] == first
    assert harness.condition("Ready") == ("True", "Ready")
    assert len(harness.fake.of("jobs", component="parity")) == 2


async def test_scaling_up_and_down_reuses_the_verdict() -> None:
    harness = Harness()
    await harness.settle()
    harness.change(replicas=3)
    await harness.settle()
    assert harness.status["readyReplicas"] == 3
    harness.change(replicas=1)
    await harness.settle()
    assert harness.status["readyReplicas"] == 1
    assert len(harness.fake.of("jobs", component="parity")) == 1


async def test_an_unverified_first_revision_runs_one_pod() -> None:
    harness = Harness(encoder_model(replicas=3))
    harness.parity = lambda job: {"result": "Inconclusive", "message": "the server's limits let 2 of 40 cases through"}
    await harness.settle()
    (verified,) = [one for one in harness.status["conditions"] if one["type"] == "Verified"]
    assert "the server's limits let 2 of 40 cases through" in verified["message"]
    assert harness.fake.of("deployments")[0]["spec"]["replicas"] == 1
    assert harness.condition("Verified") == ("Unknown", "Inconclusive")
    assert harness.condition("Degraded") == ("False", "AsExpected")


async def test_an_inconclusive_comparison_is_tried_again_later_and_never_promotes() -> None:
    harness = Harness()
    harness.parity = lambda job: {"result": "Inconclusive", "message": "connection refused"}
    await harness.settle()
    assert harness.endpoints() == []
    for job in harness.fake.of("jobs", component="parity"):
        job["status"]["conditions"][0]["lastTransitionTime"] = "2020-01-01T00:00:00Z"
    harness.parity = passing_report
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")


async def test_comparisons_that_prove_nothing_are_tried_ever_more_rarely() -> None:
    harness = Harness()
    harness.parity = lambda job: {"result": "Inconclusive", "message": "connection refused"}
    for tries, delay in enumerate((5, 10, 20, 40, 80, 160, 300, 300), start=1):
        await harness.settle()
        assert len(harness.fake.of("jobs", component="parity")) == tries
        left = await harness.reconcile() or 0
        assert left == pytest.approx(delay, abs=4)
        harness.fake.ahead += timedelta(seconds=left - 2)
        await harness.settle()
        assert len(harness.fake.of("jobs", component="parity")) == tries
        harness.fake.ahead += timedelta(seconds=4)
    assert harness.endpoints() == []
    assert harness.condition("Degraded") == ("False", "AsExpected")
    assert harness.fake.of("controllerrevisions", component="verdict") == []


@pytest.mark.complaint(15)
@pytest.mark.parametrize(
    "change",
    [
        {"artifact": "sha256:" + "c" * 64},
        {"reference": "sha256:" + "c" * 64},
        {"binding": None},
        {"result": "Great"},
        {"result": None},
    ],
)
async def test_a_verdict_that_speaks_of_something_else_is_not_accepted(change: Json) -> None:
    await refused(lambda report: report | change)


@pytest.mark.complaint(15)
@pytest.mark.parametrize(
    "change",
    [
        {"uid": "another"},
        {"containerIDs": {"engine": "containerd://another"}},
        {"imageID": "sha256:another"},
        {"product": "NVIDIA-L4"},
        {"revision": "0123456789"},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_every_part_of_what_a_verdict_is_bound_to_must_match(change: Json) -> None:
    await refused(lambda report: report | {"binding": report["binding"] | change})


async def refused(change: Callable[[Json], Json]) -> None:
    """Let every comparison pass, on something else than what was asked about."""
    harness = Harness()
    harness.parity = lambda job: change(passing_report(job))
    await harness.settle()
    assert harness.endpoints() == []
    assert harness.fake.of("controllerrevisions", component="verdict") == []
    assert harness.condition("Verified") == ("Unknown", "Inconclusive")


@pytest.mark.complaint(15)
async def test_a_pod_that_restarted_during_the_parity_check_is_inconclusive() -> None:
    harness = Harness()

    def restarted(job: Json) -> Json:
        pod = harness.fake.of("pods", component="serving")[0]
        pod["status"]["containerStatuses"][0]["containerID"] = "containerd://another"
        return passing_report(job)

    harness.parity = restarted
    await harness.reconcile()
    harness.jobs()
    await harness.reconcile()
    harness.deployment()
    await harness.reconcile()
    harness.jobs()
    await harness.reconcile()
    assert harness.endpoints() == []
    assert harness.fake.of("controllerrevisions", component="verdict") == []


async def test_a_retry_annotation_gives_a_failed_revision_another_chance() -> None:
    harness = Harness()
    harness.parity = failing_report
    await harness.settle()
    await harness.settle()
    assert len(harness.fake.of("jobs", component="parity")) == 1
    harness.parity = passing_report
    harness.edit(annotate(retry="1"))
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")
    assert [v["data"]["result"] for v in harness.fake.of("controllerrevisions", component="verdict")] == ["Passed"]


async def test_disabled_parity_serves_and_reports_it() -> None:
    manifest = encoder_model()
    manifest["spec"]["parity"] = {"mode": "Disabled"}
    harness = Harness(manifest)
    await harness.settle()
    assert harness.condition("Verified") == ("Unknown", "Disabled")
    assert harness.condition("Ready") == ("True", "Ready")
    assert harness.fake.of("jobs", component="parity") == []


async def test_enforcing_later_closes_the_gate_until_verified() -> None:
    manifest = encoder_model()
    manifest["spec"]["parity"] = {"mode": "Disabled"}
    harness = Harness(manifest)
    await harness.settle()
    harness.parity = failing_report
    harness.edit(lambda live: live["spec"].update(parity={"mode": "Enforce"}))
    await harness.settle()
    assert harness.endpoints() == []
    assert harness.condition("Verified") == ("False", "ParityFailed")


async def test_warn_serves_a_failed_revision_and_reports_it() -> None:
    manifest = encoder_model()
    manifest["spec"]["parity"] = {"mode": "Warn"}
    harness = Harness(manifest)
    harness.parity = failing_report
    await harness.settle()
    assert len(harness.endpoints()) == 1
    assert harness.condition("Verified") == ("False", "ParityFailed")
    assert harness.condition("Ready") == ("True", "Ready")


async def test_tighter_thresholds_are_checked_while_the_model_serves_on() -> None:
    harness = Harness()
    await harness.settle()
    harness.edit(lambda live: live["spec"].update(parity={"thresholds": {"cosine": "0.99999999"}}))
    await harness.reconcile()
    assert len(harness.fake.of("jobs", component="parity")) == 2
    assert len(harness.endpoints()) == 1
    harness.parity = failing_report
    await harness.settle()
    assert harness.endpoints() == []
    assert harness.condition("Verified") == ("False", "ParityFailed")


async def test_a_gate_opened_by_hand_is_closed_again() -> None:
    harness = Harness()
    harness.parity = lambda job: {"result": "Inconclusive", "message": "busy"}
    await harness.settle()
    pod = copy.deepcopy(harness.fake.of("pods", component="serving")[0])
    pod["status"]["conditions"].append({"type": "encoders.dev/parity", "status": "True", "reason": "Me"})
    harness.fake.put("pods", pod)
    await harness.reconcile()
    conditions = {
        e["type"]: e["status"] for e in harness.fake.of("pods", component="serving")[0]["status"]["conditions"]
    }
    assert conditions["encoders.dev/parity"] == "False"


async def test_a_new_spec_during_a_comparison_replaces_the_candidate() -> None:
    harness = Harness()
    await harness.settle()
    harness.change(maxModelLen=64)
    await harness.reconcile()
    harness.deployment()
    harness.deployment()
    await harness.reconcile()
    unfinished = [job for job in harness.fake.of("jobs", component="parity") if "status" not in job]
    assert len(unfinished) == 1
    harness.change(maxModelLen=65)
    await harness.reconcile()
    assert [job for job in harness.fake.of("jobs", component="parity") if "status" not in job] == []
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")


async def test_a_parity_pod_that_failed_is_not_believed_when_it_reports_a_pass() -> None:
    harness = Harness()
    for _ in range(2):
        await harness.reconcile()
        harness.jobs() if not harness.fake.of("deployments") else None
        harness.deployment()
    await harness.reconcile()
    harness.deployment()
    await harness.reconcile()
    (job,) = harness.fake.of("jobs", component="parity")
    harness.end_job(job, 1, passing_report(job))
    await harness.reconcile()
    assert harness.fake.of("controllerrevisions", component="verdict") == []
    assert harness.condition("Verified") == ("Unknown", "Inconclusive")
    assert "reported Passed but failed with exit code 1" in harness.message("Verified")
    assert harness.endpoints() == []


async def test_each_gpu_product_is_verified_separately() -> None:
    harness = Harness(encoder_model(accelerator="nvidia"))
    for node, product in (("node", "NVIDIA-H200"), ("other", "NVIDIA-L4")):
        harness.fake.put("nodes", {"metadata": {"name": node, "labels": {"nvidia.com/gpu.product": product}}})
    await harness.settle()
    assert harness.status["parity"]["accelerator"] == "NVIDIA-H200"
    harness.change(replicas=2)
    await harness.reconcile()
    pod = copy.deepcopy(harness.start_pod(harness.fake.of("deployments")[0]["spec"]["template"]))
    pod["spec"]["nodeName"] = "other"
    harness.fake.put("pods", pod)
    harness.parity = lambda job: report(job, "Failed", "0.5")
    await harness.settle()
    assert len(harness.endpoints()) == 1
    assert harness.condition("Available") == ("True", "Serving")
    assert harness.condition("Degraded") == ("True", "ParityFailed")


def lose(harness: Harness) -> None:
    """Take the serving pods away as a drain does."""
    for pod in harness.fake.of("pods", component="serving"):
        harness.fake.remove("pods", "demo", pod["metadata"]["name"])


@pytest.mark.parametrize("parity", [{"mode": "Disabled"}, {"mode": "Warn"}], ids=lambda parity: parity["mode"])
@pytest.mark.parametrize("change", [{"paused": True}, {"plugin": "nobody_has_this"}], ids=["paused", "not accepted"])
async def test_what_may_serve_without_a_pass_serves_on_while_the_model_is_left_alone(
    parity: Json, change: Json
) -> None:
    manifest = encoder_model()
    manifest["spec"]["parity"] = parity
    harness = Harness(manifest)
    harness.parity = failing_report
    await harness.settle()
    assert len(harness.endpoints()) == 1
    harness.edit(lambda live: live["spec"].update(change))
    await harness.settle()
    lose(harness)
    await harness.settle()
    assert len(harness.endpoints()) == 1
    assert harness.condition("Available") == ("True", "Serving")


@pytest.mark.parametrize("change", [{"paused": True}, {"image": 7}], ids=["paused", "not accepted"])
async def test_what_failed_under_todays_thresholds_is_not_let_in_while_the_model_is_left_alone(change: Json) -> None:
    harness = Harness()
    await harness.settle()
    harness.parity = failing_report
    harness.edit(lambda live: live["spec"].update(parity={"thresholds": {"cosine": "0.99999999"}}))
    await harness.settle()
    assert harness.condition("Verified") == ("False", "ParityFailed")
    template = harness.fake.of("deployments")[0]["spec"]["template"]
    harness.edit(lambda live: live["spec"].update(change))
    harness.start_pod(template)
    for _ in range(2):
        await harness.reconcile()
        for pod in harness.fake.of("pods", component="serving"):
            harness._kubelet(pod)
    assert harness.endpoints() == []


@pytest.mark.fault(
    "the parity pod's image cannot be pulled, or no node can run it",
    "`ParityRunning` with the message of the kubelet or the scheduler",
    "the parity check continues when it can",
)
@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            {
                "containerStatuses": [
                    {"name": "parity", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}}}
                ]
            },
            "no such tag",
        ),
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
                ]
            },
            "0/1 nodes",
        ),
    ],
)
async def test_a_parity_check_that_cannot_start_reports_why(status: Json, said: str) -> None:
    harness = Harness()
    await harness.reconcile()
    harness.jobs()
    await harness.reconcile()
    harness.deployment()
    await harness.reconcile()
    (job,) = harness.fake.of("jobs", component="parity")
    labels = {**job["spec"]["template"]["metadata"]["labels"]}
    owner = [controller("Job", job)]
    meta = {"name": "asks", "namespace": "demo", "labels": labels, "ownerReferences": owner}
    harness.fake.put("pods", {"metadata": meta, "status": {"phase": "Pending", **status}})
    await harness.reconcile()
    for name in ("Verified", "Progressing"):
        assert harness.condition(name)[1] == "ParityRunning"
    assert said in harness.message("Verified")
    assert len(harness.fake.of("jobs", component="parity")) == 1
    harness.fake.remove("pods", "demo", "asks")
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")
