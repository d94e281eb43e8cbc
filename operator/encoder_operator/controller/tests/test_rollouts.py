"""How one revision takes the place of another, and what keeps it from that."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from encoder_operator.client.client import Client
from encoder_operator.naming import NamespacedName
from encoder_operator.planner import planner
from encoder_operator.state.desired import parse_model
from encoder_operator.state.observed import ObservedState
from encoder_operator.state.observer import Observer
from encoder_operator.state.snapshot import SnapshotReader
from encoder_operator.tests.fake_cluster import FakeCluster, Json
from encoder_operator.tests.harness import SETTINGS, Harness, controller, encoder_model, failing_report


def spec(**changes: Any) -> Callable[[Json], None]:
    return lambda live: live["spec"].update(changes)


@pytest.mark.complaint(13)
async def test_twenty_edits_end_in_one_rollout_of_the_last() -> None:
    harness = Harness(encoder_model(replicas=2))
    await harness.settle()
    first = harness.status["activeRevision"]
    for length in range(20):
        harness.change(maxModelLen=64 + length)
        await harness.reconcile()
        harness.deployment()
        assert harness.endpoints().count(first) == 2
    await harness.settle()
    args = harness.fake.of("deployments")[0]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[args.index("--max-model-len") + 1] == "83"
    assert set(harness.endpoints()) == {harness.status["activeRevision"]}
    # what was skipped was never compared, and is not kept either
    assert len(harness.fake.of("controllerrevisions", component="verdict")) == 2
    assert len(harness.fake.of("controllerrevisions", component="revision")) <= 5


@pytest.mark.complaint(12)
async def test_going_back_in_the_middle_touches_nothing_that_serves() -> None:
    harness = Harness(encoder_model(replicas=2))
    await harness.settle()
    pods = harness.serving()
    harness.change(maxModelLen=64)
    for _ in range(3):
        await harness.reconcile()
        harness.deployment()
    assert len(harness.serving()) == 3
    harness.edit(lambda live: live["spec"]["serving"].pop("maxModelLen"))
    await harness.reconcile()
    assert harness.condition("Ready") == ("True", "Ready")
    await harness.settle()
    assert harness.serving() == pods


async def test_recreate_removes_the_old_pods_first_and_restores_them_if_the_new_ones_fail() -> None:
    harness = Harness()
    harness.edit(spec(rollout={"strategy": "Recreate"}))
    await harness.settle()
    first = harness.status["activeRevision"]
    harness.change(maxModelLen=64)
    harness.parity = failing_report
    most = 0
    for _ in range(12):
        await harness.reconcile()
        harness.jobs()
        harness.deployment()
        most = max(most, len(harness.fake.of("pods", component="serving")))
    assert most == 1
    assert harness.endpoints() == [first]
    assert harness.condition("UpToDate") == ("False", "ParityFailed")
    assert harness.condition("Available") == ("True", "Serving")
    assert len(harness.fake.of("jobs", component="parity")) == 2


@pytest.mark.complaint(10)
async def test_pods_of_a_former_revision_never_count_for_the_new_one() -> None:
    harness = Harness(encoder_model(replicas=2))
    await harness.settle()
    harness.change(maxModelLen=64)
    # until the new revision is proved the old pods answer, and the model is not ready for what the spec says
    for _ in range(3):
        await harness.reconcile()
        harness.deployment()
        assert harness.condition("UpToDate")[0] == "False"
        assert harness.condition("Ready")[0] == "False"
        assert harness.condition("Available")[0] == "True"


async def test_a_paused_model_is_left_alone_and_reports_it() -> None:
    harness = Harness()
    await harness.settle()
    first = harness.status["activeRevision"]
    harness.edit(spec(paused=True))
    harness.change(maxModelLen=64, replicas=3)
    harness.fake.writes.clear()
    await harness.settle()
    assert {write for write in harness.fake.writes if "events" not in write} == {"PATCH encodermodels/status minilm"}
    assert harness.condition("Progressing") == ("False", "Paused")
    assert harness.condition("UpToDate") == ("False", "Paused")
    assert harness.condition("Available") == ("True", "Serving")
    assert harness.condition("Ready") == ("False", "Paused")
    pod = harness.fake.of("pods", component="serving")[0]
    harness.fake.remove("pods", "demo", pod["metadata"]["name"])
    await harness.settle()
    assert harness.endpoints() == [first]
    harness.edit(spec(paused=False))
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")
    assert harness.status["readyReplicas"] == 3
    assert harness.status["activeRevision"] != first


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda live: live["spec"]["serving"].update(replicas=3), "Deployment minilm, PodDisruptionBudget minilm"),
        (spec(network={"service": {"port": 8080}}), "Service minilm"),
        (spec(network={"networkPolicy": {}}), "NetworkPolicy minilm"),
        (lambda live: live["spec"]["storage"].update(policy="Delete"), "PersistentVolumeClaim minilm-artifacts"),
        (lambda live: live["spec"]["serving"].update(replicas=0), "Deployment minilm"),
    ],
    ids=["replicas", "port", "network policy", "volume policy", "none"],
)
async def test_a_paused_model_is_not_up_to_date_while_an_object_differs_from_the_spec(
    edit: Callable[[Json], None], named: str
) -> None:
    harness = Harness()
    await harness.settle()
    endpoint = harness.status["endpoint"]
    harness.edit(spec(paused=True))
    await harness.settle()
    assert harness.condition("UpToDate") == ("True", "Current")
    assert harness.condition("Ready") == ("True", "Ready")
    before = copy.deepcopy(harness.live["spec"])
    harness.edit(edit)
    await harness.settle()
    assert harness.condition("UpToDate") == ("False", "Paused")
    assert set(harness.message("UpToDate").partition(": ")[2].split(", ")) == set(named.split(", "))
    assert harness.condition("Ready") == ("False", "Paused")
    # what clients can use is what the Service has
    assert harness.status["endpoint"] == endpoint
    harness.edit(lambda live: live.update(spec=before))
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")


async def test_a_paused_model_without_a_service_has_no_endpoint() -> None:
    manifest = encoder_model()
    manifest["spec"]["paused"] = True
    harness = Harness(manifest)
    await harness.settle()
    assert "endpoint" not in harness.status


async def test_a_model_that_is_born_paused_starts_nothing() -> None:
    manifest = encoder_model()
    manifest["spec"]["paused"] = True
    harness = Harness(manifest)
    await harness.settle()
    assert [write for write in harness.fake.writes if "events" not in write] == ["PATCH encodermodels/status minilm"]
    assert harness.condition("ArtifactReady") == ("False", "Paused")
    assert harness.condition("Ready") == ("False", "Paused")


async def test_more_preparations_than_allowed_wait_in_line() -> None:
    harness = Harness()
    harness.reconciler = harness.operator(SETTINGS.model_copy(update={"max_preps": 1}))
    for name in ("one", "two"):
        manifest = encoder_model()
        manifest["metadata"]["name"] = name
        harness.fake.put("encodermodels", manifest)
        await harness.reconciler.reconcile("demo", name)
    assert [job["metadata"]["labels"]["encoders.dev/model"] for job in harness.fake.of("jobs")] == ["one"]
    two = harness.fake.objects["encodermodels", "demo", "two"]["status"]
    ready = next(entry for entry in two["conditions"] if entry["type"] == "ArtifactReady")
    assert (ready["status"], ready["reason"]) == ("False", "Queued")
    assert two["phase"] == "Pending"
    harness.jobs()
    for name in ("one", "two"):
        await harness.reconciler.reconcile("demo", name)
    assert sorted(
        job["metadata"]["labels"]["encoders.dev/model"] for job in harness.fake.of("jobs", component="prep")
    ) == [
        "one",
        "two",
    ]


@pytest.mark.parametrize(
    ("kind", "asks", "drops"),
    [
        ("networkpolicies", spec(network={"networkPolicy": {"from": []}}), spec(network={})),
        (
            "poddisruptionbudgets",
            lambda live: live["spec"]["serving"].update(replicas=2),
            lambda live: live["spec"]["serving"].update(replicas=1),
        ),
        ("httproutes", spec(network={"httpRoute": {"parentRefs": [{"name": "gate"}]}}), spec(network={})),
    ],
)
async def test_an_optional_child_exists_while_the_spec_requests_it(kind: str, asks: Any, drops: Any) -> None:
    harness = Harness()
    harness.fake.gateway_api = True
    await harness.settle()
    assert harness.fake.of(kind) == []
    harness.edit(asks)
    await harness.settle()
    assert [found["metadata"]["name"] for found in harness.fake.of(kind)] == ["minilm"]
    assert harness.fake.of(kind)[0]["metadata"]["ownerReferences"][0]["uid"] == harness.live["metadata"]["uid"]
    assert harness.condition("Ready") == ("True", "Ready")
    harness.edit(drops)
    await harness.settle()
    assert harness.fake.of(kind) == []


async def test_a_route_without_the_gateway_api_is_reported_and_the_rest_works() -> None:
    harness = Harness()
    harness.edit(spec(network={"httpRoute": {"parentRefs": [{"name": "gate"}]}}))
    await harness.settle()
    assert harness.condition("Degraded") == ("True", "GatewayApiMissing")
    assert harness.condition("Ready") == ("True", "Ready")
    assert await harness.reconcile() == 60.0


@pytest.mark.fault(
    "the Gateway API is removed from the cluster",
    "`GatewayApiMissing` on models with a route; no effect on others",
    "every reconcile continues without it, including the first one",
)
async def test_a_gateway_api_that_goes_away_holds_nothing_up() -> None:
    harness = Harness()
    harness.fake.gateway_api = True
    harness.edit(spec(network={"httpRoute": {"parentRefs": [{"name": "gate"}]}}))
    await harness.settle()
    assert harness.condition("Degraded") == ("False", "AsExpected")
    harness.fake.gateway_api = False
    harness.fake.remove("httproutes", "demo", "minilm")
    await harness.reconcile()
    assert harness.condition("Degraded") == ("True", "GatewayApiMissing")
    assert harness.condition("Ready") == ("True", "Ready")
    harness.edit(spec(serving={**harness.live["spec"]["serving"], "maxModelLen": 64}))
    await harness.settle()
    assert harness.condition("UpToDate") == ("True", "Current")


async def test_a_foreign_network_policy_is_neither_taken_over_nor_deleted() -> None:
    harness = Harness()
    foreign = {
        "kind": "NetworkPolicy",
        "metadata": {"name": "minilm", "namespace": "demo"},
        "spec": {"podSelector": {}},
    }
    harness.fake.put("networkpolicies", copy.deepcopy(foreign))
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")
    harness.edit(spec(network={"networkPolicy": {"from": []}}))
    await harness.settle()
    assert harness.condition("Accepted") == ("False", "NameConflict")
    assert harness.condition("Available") == ("True", "Serving")
    assert harness.fake.of("networkpolicies")[0]["spec"] == {"podSelector": {}}


async def test_an_edited_storage_policy_changes_the_owner_of_the_pvc() -> None:
    harness = Harness()
    await harness.settle()
    claim = harness.fake.of("persistentvolumeclaims")[0]
    assert "ownerReferences" not in claim["metadata"]
    harness.edit(lambda live: live["spec"]["storage"].update(policy="Delete"))
    await harness.settle()
    assert harness.fake.of("persistentvolumeclaims")[0]["metadata"]["ownerReferences"][0]["kind"] == "EncoderModel"
    harness.edit(lambda live: live["spec"]["storage"].update(policy="Retain"))
    await harness.settle()
    assert not harness.fake.of("persistentvolumeclaims")[0]["metadata"].get("ownerReferences")
    harness.edit(lambda live: live["spec"]["storage"].update(policy="Delete"))
    await harness.settle()
    harness.fake.remove("encodermodels", "demo", "minilm")
    assert {kind for kind, _, _ in harness.fake.objects} <= {"events"}


async def test_progress_is_shown_and_written_at_most_once_in_ten_seconds() -> None:
    harness = Harness()
    await harness.reconcile()
    job = harness.fake.of("jobs")[0]
    harness.fake.put("nodes", {"metadata": {"name": "node"}})
    harness.fake.put(
        "pods",
        {
            "metadata": {
                "name": "prep",
                "namespace": "demo",
                "labels": job["spec"]["template"]["metadata"]["labels"],
                "ownerReferences": [controller("Job", job)],
            },
            "spec": {"nodeName": "node"},
            "status": {"phase": "Running", "containerStatuses": [{"name": "prepare", "state": {"running": {}}}]},
        },
    )
    live = parse_model(harness.live, SETTINGS)
    found = await read_state(harness)

    def shown(second: int, bytes_: int, before: Json) -> Json:
        line = {
            "phase": "download",
            "bytes": bytes_,
            "total": 100,
            "bytesPerSecond": 7,
            "at": f"2026-01-01T00:00:{second:02}Z",
        }
        pods = tuple(replace(pod, progress=line) for pod in found.prep_jobs[0].pods)
        now = replace(found, prep_jobs=(replace(found.prep_jobs[0], pods=pods),))
        plan = planner.plan(replace(live, status=before), now, SETTINGS)
        assert plan.requeue_after == 10.0
        return dict(plan.status)

    first = shown(1, 10, {})
    assert first["artifact"]["progress"] == {
        "phase": "download",
        "bytes": 10,
        "total": 100,
        "bytesPerSecond": 7,
        "at": "2026-01-01T00:00:01Z",
    }
    assert shown(9, 40, first) == first
    later = shown(11, 60, first)
    assert later["artifact"]["progress"]["bytes"] == 60


async def read_state(harness: Harness) -> ObservedState:
    """Return the facts as the operator reads them."""
    cluster = Client(config=FakeCluster.config(), transport=harness.fake)
    view = await SnapshotReader(cluster).read(NamespacedName("demo", "minilm"))
    assert view is not None
    return await Observer(cluster, SETTINGS).observe(view)
