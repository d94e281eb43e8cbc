from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from encoder_operator.api.v1alpha1 import HuggingFace
from encoder_operator.cli import render
from encoder_operator.resources import prep_job
from encoder_operator.revisions import revision
from encoder_operator.revisions.revision import Artifact
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import Revision
from encoder_operator.tests.harness import PLUGIN, SETTINGS, parsed_model

ARTIFACT = Artifact(key="k" * 64, digest="sha256:d", reference="sha256:r", revision="1" * 40, bytes=1)


BASE = parsed_model()


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


@pytest.mark.parametrize(
    ("name", "mutable"),
    [("1" * 40, False), ("main", True), ("1234567", True), ("1" * 39, True), ("1" * 41, True), ("A" * 40, True)],
)
def test_only_a_whole_commit_hash_is_immutable(name: str, mutable: bool) -> None:
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
    only_prep = parsed_model({"spec.prepare.trustRemoteCode": True}, settings)
    assert revision.inputs_hash(only_prep) == revision.inputs_hash(BASE)


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


def test_a_newer_preparation_is_an_update() -> None:
    made = revision.build(BASE, ARTIFACT, shared=True, settings=SETTINGS)
    assert revision.available_update(made, BASE, shared=True, settings=SETTINGS) is None
    pinned = copy.deepcopy(made.pinned) | {"prepVersion": 0}
    older = Revision(
        hash=made.hash,
        inputs_hash="",
        number=1,
        pvc_uid="",
        template=made.template,
        pinned=pinned,
        created=made.created,
    )
    assert "preparation version" in (revision.available_update(older, BASE, shared=True, settings=SETTINGS) or "")


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
