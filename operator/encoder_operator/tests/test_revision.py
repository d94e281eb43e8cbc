from __future__ import annotations

import copy
from typing import Any

import pytest

from encoder_operator import model, revision
from encoder_operator.canonical import Json
from encoder_operator.facts import Revision
from encoder_operator.manifests import prep_job
from encoder_operator.model import Model
from encoder_operator.revision import Artifact
from encoder_operator.tests import world
from encoder_operator.tests.world import PLUGIN, SETTINGS

ARTIFACT = Artifact(key="k" * 64, digest="sha256:d", reference="sha256:r", revision="1" * 40, bytes=1)


def parsed(**changes: Any) -> Model:
    live = world.model()
    live["metadata"]["uid"] = "u"
    for path, value in changes.items():
        *folders, name = path.split("__")
        target: Json = live
        for folder in folders:
            target = target.setdefault(folder, {})
        target[name] = value
    return model.parse(live, SETTINGS)


BASE = parsed()


@pytest.mark.parametrize(
    "change",
    [
        {"spec__serving__replicas": 7},
        {"spec__suspend": True},
        {"spec__parity": {"mode": "Warn", "thresholds": {"cosine": "0.9"}}},
        {"spec__source__huggingFace__endpoint": "http://mirror"},
        {"spec__source__huggingFace__tokenSecretRef": {"name": "hub"}},
        {"spec__prepare": {"backoffLimit": 1, "resources": {"requests": {"cpu": "2"}}}},
        {"metadata__annotations": {"encoders.dev/retry": "1"}},
        {"spec__serving__args": []},
        {"spec__serving__dtype": None},
    ],
)
def test_what_no_pod_depends_on_makes_no_revision(change: dict[str, Any]) -> None:
    assert revision.inputs(parsed(**change)) == revision.inputs(BASE)


@pytest.mark.parametrize(
    "change",
    [
        {"spec__serving__args": ["--max-num-seqs=8"]},
        {"spec__serving__dtype": "bfloat16"},
        {"spec__serving__accelerator": "nvidia"},
        {"spec__serving__env": [{"name": "A", "value": "1"}]},
        {"spec__serving__resources": {"limits": {"cpu": "2"}}},
        {"spec__serving__maxInFlight": 4},
        {"spec__source__huggingFace__revision": "2" * 40},
        {"spec__storage": {"claimName": "other"}},
        {"spec__prepare": {"allowPickle": True}},
        {"metadata__annotations": {"encoders.dev/update": "1"}},
    ],
)
def test_what_a_pod_depends_on_makes_a_revision(change: dict[str, Any]) -> None:
    assert revision.inputs(parsed(**change)) != revision.inputs(BASE)


def test_the_artifact_is_known_by_what_it_is_made_from() -> None:
    keys = {
        revision.artifact_key(parsed(**change))
        for change in (
            {},
            {"spec__source__huggingFace__revision": "2" * 40},
            {"spec__source": {"pvc": {"claimName": "c", "path": "p"}}},
            {"spec__prepare": {"allowPickle": True}},
        )
    }
    assert len(keys) == 4
    assert revision.artifact_key(parsed(spec__source__huggingFace__endpoint="http://m")) == revision.artifact_key(BASE)


def test_the_hash_covers_digest_reference_image_and_arguments() -> None:
    def rendered(found: Model, artifact: Artifact = ARTIFACT, image: str = "e:1", *, shared: bool = True) -> str:
        images = SETTINGS.images.model_copy(update={"engine": {"cpu": {PLUGIN: image}}})
        settings = SETTINGS.model_copy(update={"images": images})
        return revision.render(found, artifact, shared=shared, settings=settings).hash

    changed = {
        rendered(BASE),
        rendered(BASE, image="e:2"),
        rendered(BASE, Artifact(**ARTIFACT.pinned() | {"digest": "sha256:x"})),
        rendered(BASE, Artifact(**ARTIFACT.pinned() | {"reference": "sha256:x"})),
        rendered(parsed(spec__serving__args=["--max-num-seqs=8"])),
        rendered(BASE, shared=False),
    }
    assert len(changed) == 6
    assert rendered(BASE) == rendered(BASE)
    assert all(len(found) == 10 for found in changed)


def test_a_newer_preparation_is_an_update() -> None:
    made = revision.render(BASE, ARTIFACT, shared=True, settings=SETTINGS)
    assert revision.outdated(made, BASE, shared=True, settings=SETTINGS) is None
    pinned = copy.deepcopy(made.pinned) | {"prepVersion": 0}
    older = Revision(
        hash=made.hash, inputs="", number=1, claim_uid="", template=made.template, pinned=pinned, created=made.created
    )
    assert "preparation version" in (revision.outdated(older, BASE, shared=True, settings=SETTINGS) or "")


def test_a_jobs_inputs_change_with_the_token_and_not_with_the_operators_images() -> None:
    key = revision.artifact_key(BASE)
    with_token = parsed(spec__source__huggingFace__tokenSecretRef={"name": "hub"})
    assert prep_job.inputs(BASE, key) != prep_job.inputs(with_token, key)
    assert prep_job.inputs(BASE, key) == prep_job.inputs(parsed(spec__serving__replicas=3), key)
