"""What the spec asks for, taken through whole lives: refused while something serves, added containers, a volume on one node."""

from __future__ import annotations

from typing import Any

from encoder_operator.revisions.hashing import Json
from encoder_operator.tests.world import SETTINGS, World, changed, model

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
OWN = {"labelSelector": {"matchLabels": {"encoders.dev/model": "minilm"}}, "topologyKey": "kubernetes.io/hostname"}


def claim(*modes: str) -> Json:
    return {
        "metadata": {"name": "artifacts", "namespace": "demo"},
        "spec": {"accessModes": list(modes), "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Bound", "accessModes": list(modes)},
    }


def on_a_claim(**serving: Any) -> Json:
    live = model(**serving)
    live["spec"]["storage"] = {"claimName": "artifacts"}
    return live


async def test_pods_that_must_part_are_refused_on_a_volume_that_turns_out_to_be_on_one_node() -> None:
    world = World(on_a_claim(affinity={"podAntiAffinity": {REQUIRED: [OWN]}}))
    world.fake.put("persistentvolumeclaims", claim("ReadWriteOnce"))
    await world.settle()
    assert world.condition("Accepted") == ("False", "OneNodeOnly")
    assert "podAntiAffinity" in world.said("Accepted")
    assert not world.fake.of("jobs")
    world.fake.put("persistentvolumeclaims", claim("ReadWriteMany"))
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")


async def test_pods_on_a_volume_that_is_on_one_node_are_kept_together() -> None:
    world = World(on_a_claim())
    world.fake.put("persistentvolumeclaims", claim("ReadWriteOnce"))
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")
    (job,) = world.fake.of("jobs", component="prep")
    (pod,) = world.fake.of("pods", component="serving")
    spec = job["spec"]["template"]["spec"]
    (term,) = spec["affinity"]["podAffinity"][REQUIRED]
    assert term["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


async def test_an_overlay_that_is_refused_takes_nothing_away_from_what_serves() -> None:
    world = World()
    await world.settle()
    serving = world.serving()
    world.change(podTemplate={"spec": {"hostNetwork": True}})
    await world.settle()
    assert world.condition("Accepted") == ("False", "PodTemplateDenied")
    assert "spec.hostNetwork" in world.said("Accepted")
    assert world.condition("Available")[0] == "True"
    assert world.condition("Ready")[0] == "False"
    assert world.serving() == serving
    world.change(podTemplate={"metadata": {"labels": {"team": "search"}}})
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")
    assert world.serving() != serving
    (pod,) = world.fake.of("pods", component="serving")
    assert pod["metadata"]["labels"]["team"] == "search"


async def test_the_engine_is_what_counts_of_a_pod_with_more_containers() -> None:
    """The API server lists containers by name: one of these comes first, and its image and end say nothing."""
    world = World(model(podTemplate={"spec": {"containers": [{"name": "agent", "image": "agent:1"}]}}))

    def with_agent(pod: Json) -> None:
        agent = {"name": "agent", "containerID": "containerd://agent", "imageID": "sha256:agent", "state": {}}
        pod["status"].setdefault("containerStatuses", []).insert(0, agent)

    world.starts = with_agent
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")
    (record,) = world.fake.of("controllerrevisions", component="verdict")
    binding = record["data"]["binding"]
    assert binding["imageID"] != "sha256:agent"
    assert set(binding["containerIDs"]) == {"agent", "engine"}


async def test_trusted_code_is_said_and_only_where_the_operator_permits_it() -> None:
    world = World(changed({"spec.serving.trustRemoteCode": True}))
    await world.settle()
    assert world.condition("Accepted") == ("False", "RemoteCodeDenied")
    world.reconciler = world.operator(SETTINGS.model_copy(update={"allow_trust_remote_code": True}))
    await world.settle()
    assert world.condition("Accepted") == ("True", "RemoteCodeTrusted")
    assert world.condition("Ready") == ("True", "Ready")
    (pod,) = world.fake.of("pods", component="serving")
    assert pod["metadata"]["labels"]["encoders.dev/trust-remote-code"] == "true"
    assert [event["reason"] for event in world.fake.of("events")].count("RemoteCodeTrusted") == 1


async def test_an_image_of_ones_own_is_pinned_and_no_update_is_offered() -> None:
    world = World(changed({"spec.image": "mine:1"}))
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")
    assert world.condition("UpdateAvailable") == ("False", "Current")
    (pod,) = world.fake.of("pods", component="serving")
    assert pod["spec"]["containers"][0]["image"] == "mine:1"
