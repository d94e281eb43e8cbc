"""Prep slots with three tenants: what one of them cannot run, or has too much of, keeps none of the others waiting."""

import secrets
from collections.abc import Iterator

import pytest

from encoder_node.waiting import wait_for
from encoder_platform import manifests
from encoder_platform.kube import Kube, condition, is_true
from encoder_platform.operator_process import OperatorProcess
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn, Unschedulable, never, prepared

NO_PODS = {"replicas": 0}
NO_NODE = "0/1 nodes are available: 1 Insufficient memory."


@pytest.fixture
def tenants(kube: Kube) -> Iterator[tuple[Scene, Scene, Scene]]:
    """Three namespaces with a claim each."""
    scenes = tuple(Scene(f"tenant-{name}-{secrets.token_hex(3)}", kube) for name in ("busy", "small", "late"))
    for scene in scenes:
        kube.apply(manifests.namespace(scene.name), manifests.claim("artifacts", scene.name))
    yield scenes  # type: ignore[misc]
    for scene in scenes:
        kube.delete(("v1", "Namespace"), scene.name)


@pytest.fixture
def two_slots(no_other_preps: None, stopped_operator: OperatorProcess) -> OperatorProcess:
    """An operator that runs two prep Jobs at once, of which a namespace may have one more than that."""
    stopped_operator.start(ENCODER_MAX_PREPS="2", ENCODER_MAX_PREPS_PER_NAMESPACE="3")
    stopped_operator.wait_ready()
    return stopped_operator


def reasons(scene: Scene, names: list[str]) -> list[str]:
    return [str(condition(scene.model(name), "ArtifactReady").get("reason")) for name in names]


@pytest.mark.fault(
    "one tenant's prep Jobs cannot be scheduled",
    "`Unschedulable`, further ones of that tenant `Queued`",
    "they hold no slot, so other tenants' checkpoints are prepared",
)
def test_prep_jobs_that_cannot_be_scheduled_keep_no_other_tenant_waiting(
    tenants: tuple[Scene, Scene, Scene], stand_in: StandIn, two_slots: OperatorProcess
) -> None:
    busy, small, late = tenants
    stand_in.place = lambda pod: Unschedulable(NO_NODE) if pod["metadata"]["namespace"] == busy.name else "node-1"
    names = [f"m{number}" for number in range(5)]
    for name in names:
        busy.apply_model(name, serving=NO_PODS)
    wait_for(
        "three that cannot be scheduled",
        lambda: sorted(reasons(busy, names)) == ["Queued"] * 2 + ["Unschedulable"] * 3,
        seconds=60,
    )
    for scene in (small, late):
        scene.apply_model(serving=NO_PODS)
    for scene in (small, late):
        scene.wait_current("ArtifactReady", seconds=60)
    stand_in.place = lambda _: "node-1"
    for name in names:
        busy.wait_current("ArtifactReady", name, seconds=60)


@pytest.mark.fault(
    "a quota rejects one tenant's prep Jobs or their pods",
    "`WriteRefused` or `PodsRefused` with the API server's message",
    "they hold no slot, so other tenants' checkpoints are prepared",
)
@pytest.mark.parametrize(("quota", "reason"), [("count/jobs.batch", "WriteRefused"), ("pods", "PodsRefused")])
def test_prep_jobs_that_a_quota_rejects_keep_no_other_tenant_waiting(
    quota: str, reason: str, tenants: tuple[Scene, Scene, Scene], stand_in: StandIn, two_slots: OperatorProcess
) -> None:
    busy, small, _ = tenants
    meta = {"name": "none", "namespace": busy.name}
    busy.kube.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": {quota: "0"}}})
    names = ["m0", "m1"]
    for name in names:
        busy.apply_model(name, serving=NO_PODS)
    for name in names:
        busy.wait_condition("Progressing", reason, name, seconds=60)
    small.apply_model(serving=NO_PODS)
    small.wait_current("ArtifactReady", seconds=90)


def test_free_slots_go_to_three_tenants_in_turn(
    tenants: tuple[Scene, Scene, Scene], stand_in: StandIn, two_slots: OperatorProcess
) -> None:
    busy, small, late = tenants
    stand_in.prep = never
    names = [f"m{number}" for number in range(6)]
    for name in names:
        busy.apply_model(name, serving=NO_PODS)
    wait_for("two run", lambda: reasons(busy, names).count("Preparing") == 2, seconds=90)
    for scene in (small, late):
        scene.apply_model(serving=NO_PODS)
        wait_for("queued", lambda scene=scene: reasons(scene, ["minilm"]) == ["Queued"], seconds=90)  # type: ignore[misc]
    # the next two slots go to the tenants that came last, one each
    first = {pod["metadata"]["uid"] for name in names for pod in busy.pods(name, "prep")}
    stand_in.prep = lambda pod: prepared(pod) if pod["metadata"]["uid"] in first else None
    wait_for(
        "one slot for each of the others",
        lambda: reasons(small, ["minilm"]) == reasons(late, ["minilm"]) == ["Preparing"],
        seconds=90,
    )
    assert reasons(busy, names).count("Queued") == 4
    stand_in.prep = prepared
    wait_for(
        "all are prepared",
        lambda: all(is_true(busy.model(name), "ArtifactReady") for name in names),
        seconds=60,
    )
