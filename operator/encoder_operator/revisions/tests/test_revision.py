from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from encoder_operator.api.v1alpha1 import HuggingFace
from encoder_operator.cli import render
from encoder_operator.resources import prep_job
from encoder_operator.revisions import revision
from encoder_operator.revisions.hashing import json_digest
from encoder_operator.revisions.revision import Artifact
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import Revision
from encoder_operator.tests.harness import PLUGIN, SETTINGS, parsed_model

ARTIFACT = Artifact(key="k" * 64, digest="sha256:d", reference="sha256:r", revision="1" * 40, bytes=1)


BASE = parsed_model()
IMAGE = "encoder-operator/engine-sentence_transformer:0.1.0-cpu"


@pytest.mark.parametrize(
    "change",
    [
        {"spec.serving.replicas": 7},
        {"spec.suspend": True},
        {"spec.parity": {"mode": "Warn", "thresholds": {"cosine": "0.9"}}},
        {"spec.source.huggingFace.endpoint": "http://mirror"},
        {"spec.source.huggingFace.tokenSecretRef": {"name": "hub"}},
        {"spec.prepare": {"backoffLimit": 1, "resources": {"requests": {"cpu": "2"}}}},
        {"metadata.annotations": {"encoders.dev/retry": "1"}},
        {"spec.serving.args": []},
        {"spec.serving.dtype": None},
        {"spec.serving.limits": {}},
        # a default that a person writes down
        {
            "spec.serving.tensorParallelSize": 1,
            "spec.serving.loadFormat": "auto",
            "spec.serving.trustRemoteCode": False,
        },
        {"spec.rollout": {"strategy": "Recreate"}},
        {"spec.network": {"service": {"port": 8080}}},
        {"spec.paused": True},
    ],
)
def test_what_no_pod_depends_on_makes_no_revision(change: dict[str, Any]) -> None:
    assert revision.inputs_hash(parsed_model(change)) == revision.inputs_hash(BASE)


@pytest.mark.parametrize(
    "change",
    [
        {"spec.serving.args": ["--max-num-seqs=8"]},
        {"spec.serving.dtype": "bfloat16"},
        {"spec.serving.accelerator": "nvidia"},
        {"spec.serving.env": [{"name": "A", "value": "1"}]},
        {"spec.serving.resources": {"limits": {"cpu": "2"}}},
        {"spec.serving.maxInFlight": 4},
        {"spec.serving.limits": {"texts": 4}},
        {"spec.source.huggingFace.revision": "2" * 40},
        {"spec.storage": {"claimName": "other"}},
        {"spec.prepare": {"allowPickle": True}},
        {"spec.image": "mine:1"},
        {"spec.serving.tensorParallelSize": 2, "spec.serving.accelerator": "nvidia"},
        {"spec.serving.podTemplate": {"metadata": {"labels": {"a": "b"}}}},
    ],
)
def test_what_a_pod_depends_on_makes_a_revision(change: dict[str, Any]) -> None:
    assert revision.inputs_hash(parsed_model(change)) != revision.inputs_hash(BASE)


def test_the_cases_that_a_user_adds_make_another_artifact_and_revision() -> None:
    for key in (revision.artifact_key, revision.inputs_hash):
        assert key(replace(BASE, inputs_hash="x")) != key(BASE)


@pytest.mark.parametrize(
    ("name", "mutable"),
    [("1" * 40, False), ("main", True), ("1234567", True), ("1" * 39, True), ("1" * 41, True), ("A" * 40, True)],
)
def test_only_a_whole_commit_hash_is_immutable(name: str, mutable: bool) -> None:
    with contextlib.nullcontext() if not mutable else pytest.raises(ValidationError, match="40 hexadecimal digits"):
        HuggingFace.model_validate({"repo": "a/b", "revision": name})
    found = HuggingFace.model_validate({"repo": "a/b", "revision": name, "allowMutableRevision": True})
    assert revision.is_mutable_revision(found) is mutable


def test_each_model_looks_a_branch_up_for_itself_and_again_for_each_retry() -> None:
    branch = {"spec.source": {"huggingFace": {"repo": "a/b", "revision": "main", "allowMutableRevision": True}}}
    asked = [
        {"metadata.uid": uid, "metadata.annotations": {"encoders.dev/retry": retry}}
        for uid in ("u1", "u2")
        for retry in ("", "1")
    ]
    assert len({revision.artifact_key(parsed_model({**branch, **change})) for change in asked}) == 4
    # the artifact of a commit is the same for all models
    assert len({revision.artifact_key(parsed_model(change)) for change in asked}) == 1


def test_code_of_the_repository_is_prepared_apart() -> None:
    settings = SETTINGS.model_copy(update={"allow_trust_remote_code": True})

    def key(change: dict[str, Any]) -> str:
        return revision.artifact_key(parsed_model(change, settings))

    served = {"spec.serving.trustRemoteCode": True}
    assert key(served) == key({"spec.prepare.trustRemoteCode": True}) != key({}) == revision.artifact_key(BASE)
    # an engine may need the code where the original library does not
    assert key(served | {"spec.prepare.trustRemoteCode": False}) == key({})

    def inputs(change: dict[str, Any]) -> str:
        return revision.inputs_hash(parsed_model(change, settings))

    # an edit after the preparation makes another artifact, as one of allowPickle does
    assert inputs({"spec.prepare.trustRemoteCode": True}) != inputs({})
    assert inputs(served | {"spec.prepare.trustRemoteCode": False}) != inputs(served)
    # what is said twice changes nothing
    assert inputs(served | {"spec.prepare.trustRemoteCode": True}) == inputs(served)
    assert inputs({"spec.prepare.trustRemoteCode": False}) == inputs({})


def test_the_artifact_is_known_by_what_it_is_made_from() -> None:
    keys = {
        revision.artifact_key(parsed_model(change))
        for change in (
            {},
            {"spec.source.huggingFace.revision": "2" * 40},
            {"spec.source": {"pvc": {"claimName": "c", "path": "p"}}},
            {"spec.source": {"s3": {"uri": "s3://models/search"}}},
            {"spec.source": {"s3": {"uri": "s3://models/search", "endpoint": "http://store"}}},
            {"spec.source": {"http": {"url": "http://a/m.tar", "sha256": "3" * 64}}},
            {"spec.source": {"huggingFace": {"repo": "a/b", "revision": "main", "allowMutableRevision": True}}},
            {"spec.prepare": {"allowPickle": True}},
        )
    }
    assert len(keys) == 8
    assert revision.artifact_key(
        parsed_model({"spec.source.huggingFace.endpoint": "http://m"})
    ) == revision.artifact_key(BASE)


def test_the_key_of_an_artifact_stays_the_hash_of_these_inputs() -> None:
    """Another version that hashes them otherwise would prepare every checkpoint again."""
    images = SETTINGS.images.model_copy(update={"prep": {"deberta_gliner_linker": "prep:1"}})
    settings = SETTINGS.model_copy(update={"images": images, "allow_trust_remote_code": True})
    parameters = {"wordsSplitter": "whitespace"}
    model = parsed_model(
        {
            "spec.plugin": "deberta_gliner_linker",
            "spec.image": "mine:1",
            "spec.source.huggingFace": {"repo": "a/b", "revision": "1" * 40},
            "spec.prepare": {"trustRemoteCode": True, "parameters": parameters},
            "spec.labelSets": [{"name": "cities", "sha256": "1" * 64, "url": "http://web/cities.jsonl"}],
        },
        settings,
    )
    inputs = {
        "source": {"repo": "a/b", "revision": "1" * 40},
        "plugin": "deberta_gliner_linker",
        "prepVersion": model.plugin.prep_version,
        "allowPickle": False,
        "inputs": "x",
        "trustRemoteCode": True,
        "parameters": parameters,
        "labelSets": {"cities": "1" * 64},
    }
    assert revision.artifact_key(replace(model, inputs_hash="x")) == json_digest(inputs)


def test_parameters_of_a_preparation_make_another_artifact_another_revision_and_stand_in_what_it_pins() -> None:
    settings = SETTINGS.model_copy(
        update={"images": SETTINGS.images.model_copy(update={"prep": {"mt5_gliner": "prep:1"}})}
    )
    plain, changed = (
        parsed_model({"spec.plugin": "mt5_gliner", "spec.image": "mine:1", "spec.prepare": prepare}, settings)
        for prepare in ({}, {"parameters": {"wordsSplitter": "whitespace"}})
    )
    assert revision.artifact_key(plain) != revision.artifact_key(changed)
    assert revision.inputs_hash(plain) != revision.inputs_hash(changed)
    assert prep_job.inputs_hash(plain, "k") != prep_job.inputs_hash(changed, "k")
    arguments = prep_job.build(changed, "k" * 64, shared=True, settings=settings)["spec"]["template"]["spec"][
        "containers"
    ][0]["args"]
    assert arguments[arguments.index("--parameter") + 1] == "wordsSplitter=whitespace"
    artifact = replace(ARTIFACT, parameters={"wordsSplitter": "whitespace"}, label_sets={"a": "1" * 64})
    built = revision.build(changed, artifact, shared=True, settings=settings)
    assert revision.pinned_artifact(built) == artifact
    assert not ARTIFACT.pinned().keys() & {"parameters", "label_sets"}


def test_the_hash_covers_digest_reference_image_and_arguments() -> None:
    def rendered(found: EncoderModel, artifact: Artifact = ARTIFACT, image: str = "e:1", *, shared: bool = True) -> str:
        images = SETTINGS.images.model_copy(update={"engine": {"cpu": {PLUGIN: image}}})
        settings = SETTINGS.model_copy(update={"images": images})
        return revision.build(found, artifact, shared=shared, settings=settings).hash

    changed = {
        rendered(BASE),
        rendered(BASE, image="e:2"),
        rendered(BASE, Artifact(**ARTIFACT.pinned() | {"digest": "sha256:x"})),
        rendered(BASE, Artifact(**ARTIFACT.pinned() | {"reference": "sha256:x"})),
        rendered(parsed_model({"spec.serving.args": ["--max-num-seqs=8"]})),
        rendered(BASE, shared=False),
    }
    assert len(changed) == 6
    assert rendered(BASE) == rendered(BASE)
    assert all(len(found) == 10 for found in changed)


def made(model: EncoderModel = BASE, **changes: Any) -> Revision:
    """Return the revision of a model, with some of its fields replaced."""
    return replace(revision.build(model, ARTIFACT, shared=True, settings=SETTINGS), **changes)


def test_a_revision_pins_what_its_pods_run() -> None:
    found = made()
    assert found.pinned == {
        "artifact": ARTIFACT.pinned(),
        "claim": BASE.pvc_name,
        "plugin": PLUGIN,
        "prepVersion": BASE.plugin.prep_version,
        "image": IMAGE,
        "accelerator": "cpu",
        "dtype": "float32",
        "args": [],
    }
    assert revision.pinned_artifact(found) == ARTIFACT
    assert found.template["metadata"]["labels"]["encoders.dev/revision"] == found.hash
    # numbers from 1 are given when revisions are recorded
    assert found.number == 0


@pytest.mark.parametrize(
    ("pinned", "change", "expected"),
    [
        ({}, {}, None),
        ({"prepVersion": 0}, {}, "preparation version 1 of plugin sentence_transformer (pinned: 0)"),
        ({"image": "old:1"}, {"hash": "other"}, f"image {IMAGE} (pinned: old:1)"),
        ({"dtype": "bfloat16", "args": ["-x"]}, {"hash": "other"}, "newer defaults (args, dtype)"),
        ({}, {"hash": "other"}, "newer defaults (pod template)"),
    ],
)
@pytest.mark.usefixtures("first_prep_versions")
def test_what_the_defaults_would_change_is_an_update(pinned: Any, change: Any, expected: str | None) -> None:
    model = parsed_model()
    found = made(model)
    target = replace(found, pinned=found.pinned | pinned, **change)
    assert revision.available_update(target, model, shared=True, settings=SETTINGS) == expected


@pytest.mark.parametrize(
    ("update", "recorded", "matches"),
    [
        ("", "", True),
        ("", "x", True),
        ("x", "x", True),
        ("x", "", False),
        ("x", "y", False),
        # what the operator chose stays until the user annotates something else
        ("x", "x+auto-1", True),
        ("y", "x+auto-1", False),
        ("x+auto-1", "x+auto-1", True),
        ("x+auto-2", "x+auto-1", False),
        ("x+auto-1", "x", False),
    ],
)
def test_a_revision_of_another_update_is_not_the_one_that_is_wanted(update: str, recorded: str, matches: bool) -> None:
    assert revision.matches_spec(replace(BASE, update=update), made(update=recorded)) is matches
    other = parsed_model({"spec.serving.dtype": "bfloat16"})
    assert not revision.matches_spec(replace(other, update=update), made(update=recorded))


def test_version_0_1_0_hashed_the_update_with_the_inputs() -> None:
    wanted = replace(BASE, update="x")
    older = made(inputs_hash=revision.inputs_hash(BASE, "x"))
    assert revision.matches_spec(wanted, older)
    assert not revision.matches_spec(wanted, replace(older, update="y"))
    assert not revision.matches_spec(replace(BASE, update="z"), older)
    assert not revision.matches_spec(BASE, older)


@pytest.mark.parametrize(
    ("unresolved", "retry", "recorded", "requested"),
    [
        ("", "2", "1", True),
        ("branch", "2", "1", False),
        ("branch", "2", "2", True),
        # a removed annotation requests nothing
        ("branch", "", "1", True),
    ],
)
def test_a_retry_reads_a_branch_anew(unresolved: str, retry: str, recorded: str, requested: bool) -> None:
    found = made(unresolved_source=unresolved, retry=recorded)
    assert revision.is_requested(replace(BASE, retry=retry), found) is requested
    assert not revision.is_requested(parsed_model({"spec.serving.dtype": "bfloat16"}), found)


def test_only_a_source_whose_content_can_change_is_unresolved() -> None:
    branch = {"huggingFace": {"repo": "a/b", "revision": "main", "allowMutableRevision": True}}
    sources: list[Any] = [
        branch,
        {"s3": {"uri": "s3://models/search"}},
        {"s3": {"uri": "s3://models/search", "endpoint": "http://store"}},
        {"pvc": {"claimName": "c", "path": "p"}},
    ]
    found = [revision.unresolved_source(parsed_model({"spec.source": source})) for source in sources]
    assert len({*found, ""}) == 5
    assert {len(one) for one in found} == {16}
    for known in ({}, {"spec.source": {"http": {"url": "http://a/m.tar", "sha256": "3" * 64}}}):
        assert revision.unresolved_source(parsed_model(known)) == ""
    further = {"auxiliary": [{"repo": "c/d", "revision": "2" * 40}]}
    assert revision.source_identity(parsed_model({"spec.source": {**branch, **further}})) == {
        "repo": "a/b",
        "branch": "main",
        "auxiliary": [{"repo": "c/d", "revision": "2" * 40}],
    }
    assert revision.source_identity(BASE).keys() == {"repo", "revision"}
    # a trailing slash names the same objects
    assert revision.source_identity(parsed_model({"spec.source": {"s3": {"uri": "s3://models/search/"}}})) == {
        "s3": "s3://models/search",
        "endpoint": "",
    }


def test_a_path_on_a_volume_names_its_content_until_it_is_to_be_read_anew() -> None:
    volume = {"spec.source": {"pvc": {"claimName": "c", "path": "p"}}}

    def keys(retry: str) -> set[str]:
        changed = {**volume, "metadata.annotations": {"encoders.dev/retry": retry}}
        return {revision.artifact_key(parsed_model({**changed, "metadata.uid": uid})) for uid in ("u1", "u2")}

    assert (len(keys("")), len(keys("1"))) == (1, 2)


def test_a_jobs_inputs_change_with_the_token_and_not_with_the_operators_images() -> None:
    key = revision.artifact_key(BASE)
    with_token = parsed_model({"spec.source.huggingFace.tokenSecretRef": {"name": "hub"}})
    assert prep_job.inputs_hash(BASE, key) != prep_job.inputs_hash(with_token, key)
    assert prep_job.inputs_hash(BASE, key) == prep_job.inputs_hash(parsed_model({"spec.serving.replicas": 3}), key)


@pytest.mark.usefixtures("first_prep_versions")
@pytest.mark.parametrize(
    ("name", "key", "revision_hash", "inputs", "job"),
    [
        ("cpu", "3df70115e83472a8", "b96c7e1680", "263929e22c93b7be", "0e419a17bbefcc1d"),
        ("nvidia", "2d17708067bca3b5", "eadb7aa8ec", "90e267989dc9f01d", "339ece9595f181a2"),
        ("volume", "c6fe6fcd2399dfb8", "fb66305a78", "dd9400639d6d17e9", "d7c14c57c613f1f0"),
    ],
)
def test_a_field_that_came_later_and_is_not_used_changes_nothing(
    name: str, key: str, revision_hash: str, inputs: str, job: str
) -> None:
    """Versions from 0.1.0 on know these specs by these names: another one would prepare again, or roll pods."""
    live = yaml.safe_load((Path(__file__).parents[2] / f"resources/tests/golden/{name}.cr.yaml").read_text())
    found = {child["kind"]: child["metadata"] for child in reversed(render.render_children(live, SETTINGS))}
    made = found["ControllerRevision"]["labels"]
    assert found["Job"]["name"].split("-")[-2] == key
    assert found["Job"]["annotations"]["encoders.dev/inputs"] == job
    assert made["encoders.dev/revision"] == revision_hash
    assert made["encoders.dev/inputs"] == inputs
