"""What the spec asks for, taken through whole lives: refused while something serves, added containers, a volume on one node."""

from __future__ import annotations

from typing import Any

import pytest

from encoder_operator.client.errors import RequestRejected
from encoder_operator.revisions.hashing import Json
from encoder_operator.tests.harness import SETTINGS, Harness, encoder_model, with_fields

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
OWN = {"labelSelector": {"matchLabels": {"encoders.dev/model": "minilm"}}, "topologyKey": "kubernetes.io/hostname"}


def claim(*modes: str) -> Json:
    return {
        "metadata": {"name": "artifacts", "namespace": "demo"},
        "spec": {"accessModes": list(modes), "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Bound", "accessModes": list(modes)},
    }


def on_a_claim(**serving: Any) -> Json:
    live = encoder_model(**serving)
    live["spec"]["storage"] = {"claimName": "artifacts"}
    return live


async def test_pods_that_must_part_are_refused_on_a_volume_that_turns_out_to_be_on_one_node() -> None:
    harness = Harness(on_a_claim(affinity={"podAntiAffinity": {REQUIRED: [OWN]}}))
    harness.fake.put("persistentvolumeclaims", claim("ReadWriteOnce"))
    await harness.settle()
    assert harness.condition("Accepted") == ("False", "OneNodeOnly")
    assert "podAntiAffinity" in harness.message("Accepted")
    assert not harness.fake.of("jobs")
    harness.fake.put("persistentvolumeclaims", claim("ReadWriteMany"))
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")


async def test_pods_on_a_volume_that_is_on_one_node_are_kept_together() -> None:
    harness = Harness(on_a_claim())
    harness.fake.put("persistentvolumeclaims", claim("ReadWriteOnce"))
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")
    (job,) = harness.fake.of("jobs", component="prep")
    (pod,) = harness.fake.of("pods", component="serving")
    spec = job["spec"]["template"]["spec"]
    (term,) = spec["affinity"]["podAffinity"][REQUIRED]
    assert term["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


async def test_an_overlay_that_is_refused_takes_nothing_away_from_what_serves() -> None:
    harness = Harness()
    await harness.settle()
    serving = harness.serving()
    harness.change(podTemplate={"spec": {"hostNetwork": True}})
    await harness.settle()
    assert harness.condition("Accepted") == ("False", "PodTemplateDenied")
    assert "spec.hostNetwork" in harness.message("Accepted")
    assert harness.condition("Available")[0] == "True"
    assert harness.condition("Ready")[0] == "False"
    assert harness.serving() == serving
    harness.change(podTemplate={"metadata": {"labels": {"team": "search"}}})
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")
    assert harness.serving() != serving
    (pod,) = harness.fake.of("pods", component="serving")
    assert pod["metadata"]["labels"]["team"] == "search"


async def test_the_engine_is_what_counts_of_a_pod_with_more_containers() -> None:
    """The API server lists containers by name: one of these comes first, and its image and end say nothing."""
    harness = Harness(encoder_model(podTemplate={"spec": {"containers": [{"name": "agent", "image": "agent:1"}]}}))

    def with_agent(pod: Json) -> None:
        agent = {"name": "agent", "containerID": "containerd://agent", "imageID": "sha256:agent", "state": {}}
        pod["status"].setdefault("containerStatuses", []).insert(0, agent)

    harness.starts = with_agent
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")
    (record,) = harness.fake.of("controllerrevisions", component="verdict")
    binding = record["data"]["binding"]
    assert binding["imageID"] != "sha256:agent"
    assert set(binding["containerIDs"]) == {"agent", "engine"}


async def test_trusted_code_is_reported_and_needs_the_operators_permission() -> None:
    harness = Harness(with_fields({"spec.serving.trustRemoteCode": True}))
    await harness.settle()
    assert harness.condition("Accepted") == ("False", "RemoteCodeDenied")
    harness.reconciler = harness.operator(SETTINGS.model_copy(update={"allow_trust_remote_code": True}))
    await harness.settle()
    assert harness.condition("Accepted") == ("True", "RemoteCodeTrusted")
    assert harness.condition("Ready") == ("True", "Ready")
    (pod,) = harness.fake.of("pods", component="serving")
    assert pod["metadata"]["labels"]["encoders.dev/trust-remote-code"] == "true"
    assert [event["reason"] for event in harness.fake.of("events")].count("RemoteCodeTrusted") == 1


async def test_an_image_of_ones_own_is_pinned_and_no_update_is_offered() -> None:
    harness = Harness(with_fields({"spec.image": "mine:1"}))
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")
    assert harness.condition("UpdateAvailable") == ("False", "Current")
    (pod,) = harness.fake.of("pods", component="serving")
    assert pod["spec"]["containers"][0]["image"] == "mine:1"


async def test_an_artifact_that_was_recorded_with_code_is_replaced_when_the_code_is_not_trusted_any_more() -> None:
    harness = Harness()
    harness.operator_settings = SETTINGS.model_copy(update={"allow_trust_remote_code": True})
    harness.reconciler = harness.operator()
    harness.edit(lambda live: live["spec"].update(prepare={"trustRemoteCode": True}))
    await harness.settle()
    trusting = harness.status["activeRevision"]
    harness.edit(lambda live: live["spec"].update(prepare={"trustRemoteCode": False}))
    await harness.settle()
    assert harness.condition("Ready")[0] == "True"
    assert harness.status["activeRevision"] != trusting
    # the way back needs neither a preparation nor a comparison
    jobs = len(harness.fake.of("jobs"))
    harness.edit(lambda live: live["spec"].update(prepare={"trustRemoteCode": True}))
    await harness.settle()
    assert harness.status["activeRevision"] == trusting
    assert len(harness.fake.of("jobs")) <= jobs


WRONG = 'Deployment.apps "minilm" is invalid: spec.template.spec.dnsPolicy: Unsupported value: "Foo"'


@pytest.mark.parametrize("code", [422, 500])
async def test_a_pod_template_that_the_api_server_refuses_is_reported_before_the_preparation(code: int) -> None:
    harness = Harness(encoder_model(podTemplate={"spec": {"dnsPolicy": "Foo"}}))
    harness.fake.invalid["deployments"] = (
        code,
        WRONG if code == 422 else f"failed to create typed patch object: {WRONG}",
    )
    with pytest.raises(RequestRejected):
        await harness.reconcile()
    assert harness.condition("ArtifactReady") == ("False", "WriteRefused")
    assert harness.condition("Ready") == ("False", "WriteRefused")
    assert WRONG in harness.message("ArtifactReady")
    # neither a volume nor a Job
    assert {kind for kind, _ in harness.fake.created} == {"events"}
    harness.fake.invalid.clear()
    harness.change(podTemplate={"spec": {"dnsPolicy": "Default"}})
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")


@pytest.mark.parametrize("cause", ["forbidden", "webhook_down"])
async def test_a_dry_run_that_is_not_possible_keeps_no_model_from_its_preparation(cause: str) -> None:
    harness = Harness(encoder_model(podTemplate={"spec": {"dnsPolicy": "Default"}}))
    getattr(harness.fake, cause).add("PATCH deployments")
    await harness.reconcile()
    assert harness.condition("ArtifactReady") == ("False", "Preparing")
    assert len(harness.fake.of("jobs", component="prep")) == 1
