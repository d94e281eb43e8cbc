"""Further repositories of a checkpoint, and a user's own cases for the comparison."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from encoder_operator.api.v1alpha1 import crd
from encoder_operator.resources import prep_job
from encoder_operator.revisions import revision
from encoder_operator.revisions.hashing import Json
from encoder_operator.state import desired
from encoder_operator.state.desired import EncoderModel
from encoder_operator.tests import harness
from encoder_operator.tests.harness import SETTINGS, Harness
from encoder_operator.validation.errors import NotAccepted

BASE = {"repo": "microsoft/deberta-v3-small", "revision": "a" * 40}
SCHEMA = crd.build()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def manifest(auxiliary: list[Json] | None = None, inputs: Json | None = None) -> Json:
    live = harness.encoder_model()
    live["metadata"]["uid"] = "u"
    if auxiliary is not None:
        live["spec"]["source"]["auxiliary"] = auxiliary
    if inputs is not None:
        live["spec"]["parity"] = {"inputs": inputs}
    return live


def parsed(auxiliary: list[Json] | None = None, inputs: Json | None = None, content: str | None = "") -> EncoderModel:
    return desired.parse_model(manifest(auxiliary, inputs), SETTINGS, content)


def arguments(found: EncoderModel) -> list[str]:
    job = prep_job.build(found, "k" * 64, shared=True, settings=SETTINGS)
    return list(job["spec"]["template"]["spec"]["containers"][0]["args"])


def values(args: list[str], option: str) -> list[str]:
    return [args[place + 1] for place, arg in enumerate(args) if arg == option]


def test_an_auxiliary_repository_is_part_of_the_key_and_reaches_the_job() -> None:
    found = parsed([BASE])
    assert revision.artifact_key(found) != revision.artifact_key(parsed())
    assert revision.inputs_hash(found) != revision.inputs_hash(parsed())
    assert revision.artifact_key(found) != revision.artifact_key(parsed([{**BASE, "revision": "b" * 40}]))
    assert values(arguments(found), "--auxiliary") == [f"{BASE['repo']}@{'a' * 40}"]
    assert values(arguments(parsed()), "--auxiliary") == []


def test_fields_that_are_not_used_leave_old_keys_and_jobs_alone() -> None:
    assert revision.artifact_key(parsed([])) == revision.artifact_key(parsed())
    assert prep_job.inputs_hash(parsed([]), "k") == prep_job.inputs_hash(parsed(), "k")


@pytest.mark.parametrize(
    "auxiliary",
    [
        [{**BASE, "repo": f"a/b{number}"} for number in range(49)],
        [{"repo": BASE["repo"]}],
        [{**BASE, "repo": "no-owner"}],
        BASE,
    ],
)
def test_auxiliary_repositories_that_the_api_server_refuses(auxiliary: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(manifest(auxiliary), SCHEMA)


def test_a_branch_is_no_revision_of_an_auxiliary_repository() -> None:
    jsonschema.validate(manifest([BASE]), SCHEMA)
    items = SCHEMA["properties"]["spec"]["properties"]["source"]["properties"]["auxiliary"]["items"]
    assert "40 hexadecimal" in items["properties"]["revision"]["x-kubernetes-validations"][0]["message"]
    with pytest.raises(NotAccepted, match="auxiliary"):
        parsed([{**BASE, "revision": "main"}])


def test_allow_pickle_is_an_argument_and_part_of_the_key() -> None:
    live = manifest()
    live["spec"]["prepare"] = {"allowPickle": True}
    found = desired.parse_model(live, SETTINGS)
    assert "--allow-pickle" in arguments(found)
    assert revision.artifact_key(found) != revision.artifact_key(parsed())


def test_a_users_cases_are_mounted_and_part_of_the_key_by_content() -> None:
    named = {"configMapRef": {"name": "cases", "key": "mine.json"}}
    first, second = (parsed(inputs=named, content=content * 64) for content in "cd")
    assert len({revision.artifact_key(found) for found in (first, second, parsed())}) == 3
    assert len({revision.inputs_hash(found) for found in (first, second, parsed())}) == 3
    pod = prep_job.build(first, "k" * 64, shared=True, settings=SETTINGS)["spec"]["template"]["spec"]
    (volume,) = [found for found in pod["volumes"] if found["name"] == "inputs"]
    assert volume["configMap"] == {"name": "cases", "items": [{"key": "mine.json", "path": "inputs.json"}]}
    (mount,) = [found for found in pod["containers"][0]["volumeMounts"] if found["name"] == "inputs"]
    assert mount["readOnly"]
    assert values(arguments(first), "--inputs") == [f"{mount['mountPath']}/inputs.json"]
    assert values(arguments(first), "--inputs-sha256") == ["c" * 64]


def test_label_sets_are_part_of_the_key_by_content() -> None:
    live = manifest()
    live["spec"] |= {"plugin": "deberta_gliner_linker", "image": "mine:1"}
    images = SETTINGS.images.model_copy(update={"prep": {"deberta_gliner_linker": "prep:1"}})
    settings = SETTINGS.model_copy(update={"images": images})

    def with_sets(*sets: Json) -> EncoderModel:
        live["spec"]["labelSets"] = list(sets)
        return desired.parse_model(live, settings)

    def identity(found: EncoderModel) -> tuple[str, str]:
        return revision.artifact_key(found), revision.inputs_hash(found)

    one: Json = {"name": "a", "sha256": "0" * 64, "configMapRef": {"name": "cities"}}
    other: Json = {"name": "b", "sha256": "1" * 64, "url": "http://web/b.json"}
    variants = [(), (one,), (one, other), (other,), (one | {"sha256": "2" * 64},), (one | {"name": "c"},)]
    assert len({identity(with_sets(*sets)) for sets in variants}) == len(variants)
    assert len({identity(with_sets(*sets))[1] for sets in variants}) == len(variants)
    # neither the order nor where the same content comes from
    assert identity(with_sets(one, other)) == identity(with_sets(other, one | {"configMapRef": {"name": "towns"}}))
    hub: Json = {"repo": "a/b", "revision": "1" * 40, "path": "a.jsonl"}
    places: list[Json] = [
        {"url": "http://web/a.json"},
        {"huggingFace": hub},
        {"huggingFace": hub | {"type": "model"}},
        {"s3": {"uri": "s3://catalogues/a.jsonl"}},
    ]
    moved = [with_sets({"name": "a", "sha256": "0" * 64, **place}) for place in places]
    assert {identity(found) for found in moved} == {identity(with_sets(one))}
    # but another place is worth another attempt
    elsewhere = with_sets(one | {"configMapRef": {"name": "towns"}})
    assert len({prep_job.inputs_hash(found, "k") for found in (with_sets(one), elsewhere, *moved)}) == 6


def labelled() -> Harness:
    """Return a cluster with a model that has a label set, whose ConfigMap is not there."""
    live = manifest()
    del live["metadata"]["uid"]
    wanted = {"name": "cities", "sha256": "1" * 64, "configMapRef": {"name": "places", "key": "cities.jsonl"}}
    live["spec"] |= {"plugin": "deberta_gliner_linker", "image": "mine:1", "labelSets": [wanted]}
    images = SETTINGS.images.model_copy(update={"prep": {"deberta_gliner_linker": "prep:1"}})
    found = Harness(live)
    found.operator_settings = SETTINGS.model_copy(update={"images": images})
    found.reconciler = found.operator()
    return found


def places(**fields: Json) -> Json:
    return {"metadata": {"name": "places", "namespace": "demo"}, **fields}


@pytest.mark.parametrize("field", ["data", "binaryData"])
async def test_a_label_set_whose_config_map_is_missing_is_named_until_it_is_there(field: str) -> None:
    cluster = labelled()
    await cluster.settle()
    assert cluster.condition("ArtifactReady") == cluster.condition("Ready") == ("False", "LabelSetMissing")
    expected = "spec.labelSets: label set cities needs key cities.jsonl of ConfigMap places, which does not exist in namespace demo"
    assert cluster.message("ArtifactReady") == expected
    cluster.fake.put("configmaps", places(data={"other": ""}))
    await cluster.settle()
    assert cluster.condition("ArtifactReady") == ("False", "LabelSetMissing")
    assert "key cities.jsonl, which ConfigMap places in namespace demo does not have" in cluster.message(
        "ArtifactReady"
    )
    assert cluster.fake.of("jobs") == cluster.fake.of("persistentvolumeclaims") == []
    warnings = [event for event in cluster.fake.of("events") if event["reason"] == "LabelSetMissing"]
    assert [event["type"] for event in warnings] == ["Warning"] * len(warnings)
    assert expected in [event["message"] for event in warnings]
    # nothing tells the operator when it is created
    assert await cluster.reconcile() == 10.0
    cluster.fake.put("configmaps", places(**{field: {"cities.jsonl": ""}}))
    await cluster.settle()
    assert cluster.condition("Ready") == ("True", "Ready")


async def test_a_label_set_that_is_lost_before_the_prep_pod_has_mounted_it_is_named() -> None:
    cluster = labelled()
    cluster.fake.put("configmaps", places(data={"cities.jsonl": ""}))
    await cluster.reconcile()
    (job,) = cluster.fake.of("jobs")
    cluster.fake.remove("configmaps", "demo", "places")
    pod = {
        "metadata": {
            "name": "p",
            "namespace": "demo",
            "labels": job["spec"]["template"]["metadata"]["labels"],
            "ownerReferences": [harness.controller("Job", job)],
        },
        "spec": {},
        "status": {"phase": "Pending", "containerStatuses": [{"name": "prepare", "state": {}}]},
    }
    cluster.fake.put("pods", pod)
    await cluster.reconcile()
    assert cluster.condition("ArtifactReady") == ("False", "LabelSetMissing")
    cluster.fake.put("configmaps", places(data={"cities.jsonl": ""}))
    await cluster.reconcile()
    assert cluster.condition("ArtifactReady") == ("False", "Preparing")
    cluster.fake.remove("pods", "demo", "p")
    await cluster.settle()
    assert cluster.condition("Ready") == ("True", "Ready")
    preps = [name for kind, name in cluster.fake.created if kind == "jobs" and name.endswith("-prep")]
    assert preps == [job["metadata"]["name"]]


async def test_an_artifact_keeps_its_label_sets_whatever_becomes_of_their_config_maps() -> None:
    cluster = labelled()
    cluster.fake.put("configmaps", places(data={"cities.jsonl": "one"}))
    await cluster.settle()
    active = cluster.status["activeRevision"]
    cluster.fake.put("configmaps", places(data={"cities.jsonl": "another"}))
    await cluster.settle()
    cluster.fake.remove("configmaps", "demo", "places")
    # it is read only while a prep Job may need it
    cluster.fake.forbidden = {"GET configmaps"}
    await cluster.settle()
    cluster.fake.forbidden = set()
    # nor is it needed where the status is lost
    cluster.edit(lambda live: live.pop("status"))
    cluster.reconciler = cluster.operator()
    await cluster.settle()
    assert (cluster.condition("ArtifactReady"), cluster.status["activeRevision"]) == (("True", "Prepared"), active)
    assert cluster.condition("Ready") == ("True", "Ready")
    # other content is another sha256, and another artifact
    cluster.edit(lambda live: live["spec"]["labelSets"][0].update(sha256="2" * 64))
    await cluster.settle()
    assert cluster.condition("ArtifactReady") == ("False", "LabelSetMissing")
    assert cluster.endpoints() == [active]
    cluster.fake.put("configmaps", places(data={"cities.jsonl": "another"}))
    await cluster.settle()
    assert cluster.condition("Ready") == ("True", "Ready")
    assert cluster.endpoints() == [cluster.status["activeRevision"]] != [active]
    assert cluster.status["artifact"]["labelSets"] == [{"name": "cities", "sha256": "2" * 64}]


def config_map(content: str) -> Json:
    return {"metadata": {"name": "cases", "namespace": "demo"}, "data": {"inputs.json": content}}


def with_inputs() -> Harness:
    found = manifest(inputs={"configMapRef": {"name": "cases"}})
    del found["metadata"]["uid"]
    return Harness(found)


async def test_without_the_config_map_nothing_is_prepared_and_the_condition_names_it() -> None:
    cluster = with_inputs()
    await cluster.settle()
    assert cluster.condition("ArtifactReady") == ("False", "InputsMissing")
    (entry,) = [found for found in cluster.status["conditions"] if found["type"] == "ArtifactReady"]
    assert "cases" in entry["message"]
    assert "inputs.json" in entry["message"]
    assert cluster.fake.of("jobs") == []
    assert await cluster.reconcile() is not None
    # one that lacks the key is something else to repair
    cluster.fake.put("configmaps", config_map("[]") | {"data": {"cases.json": "[]"}})
    await cluster.settle()
    assert cluster.message("ArtifactReady").endswith(
        "ConfigMap cases in namespace demo does not have the key inputs.json"
    )


async def test_changed_cases_make_a_new_revision_and_lost_ones_take_nothing_away() -> None:
    cluster = with_inputs()
    cluster.fake.put("configmaps", config_map("[]"))
    await cluster.settle()
    first = cluster.status["activeRevision"]
    assert cluster.condition("Ready") == ("True", "Ready")
    cluster.fake.put("configmaps", config_map('[{"text": "a", "labels": ["b"]}]'))
    await cluster.settle()
    second = cluster.status["activeRevision"]
    assert second != first
    assert cluster.endpoints() == [second]
    cluster.fake.remove("configmaps", "demo", "cases")
    before = copy.deepcopy(cluster.fake.of("deployments"))
    await cluster.settle()
    assert cluster.condition("ArtifactReady") == ("False", "InputsMissing")
    assert cluster.endpoints() == [second]
    assert cluster.fake.of("deployments")[0]["spec"] == before[0]["spec"]
