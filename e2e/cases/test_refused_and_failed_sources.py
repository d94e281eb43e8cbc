"""Case 4: a bad EncoderModel is refused with a sentence; a source that is not available is one reason and one Job."""

import pytest
from kubernetes.client import ApiException

from encoder_platform import install, manifests
from encoder_platform.kube import MODELS, SECRET, Body, Kube, condition, refusal
from encoder_platform.space import Space

NO_PODS = {"accelerator": "cpu", "replicas": 0}
UNKNOWN_REVISION = "0123456789abcdef0123456789abcdef01234567"
BOTH_SOURCES = {"huggingFace": {"repo": "a/b", "revision": UNKNOWN_REVISION}, "pvc": {"claimName": "c", "path": "p"}}
REFUSED = {
    "two sources": ({"source": BOTH_SOURCES}, "exactly one"),
    "no source": ({"source": {}}, "exactly one"),
    "a branch for a revision": ({"source": {"huggingFace": {"repo": "a/b", "revision": "main"}}}, "commit of 40"),
    "an unknown plugin": ({"plugin": "word2vec"}, "plugin"),
    "two storages": ({"storage": {"claimName": "c", "create": {"size": "1Gi"}}}, "exactly one"),
    "negative replicas": ({"serving": {"accelerator": "cpu", "replicas": -1}}, "replicas"),
    "an unknown accelerator": ({"serving": {"accelerator": "tpu"}}, "accelerator"),
    "an unknown parity mode": ({"parity": {"mode": "Maybe"}}, "mode"),
    "a threshold that is not a decimal": ({"parity": {"thresholds": {"cosine": "nearly"}}}, "thresholds"),
    "an argument that would break the contract": (
        {"serving": {"accelerator": "cpu", "args": ["--port=9"]}},
        "serving.args",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_model_is_refused_with_a_sentence(kube: Kube, name: str) -> None:
    spec, phrase = REFUSED[name]
    body = manifests.encoder_model("bad", "default", revision=UNKNOWN_REVISION)
    body["spec"].update(spec)
    with pytest.raises(ApiException) as refused:
        kube.apply(body)
    assert refused.value.status == 422
    assert phrase in refusal(refused.value)


@pytest.mark.complaint(16)
def test_a_name_that_leaves_no_room_for_its_children_is_refused(kube: Kube) -> None:
    body = manifests.encoder_model("n" * 41, "default", revision=UNKNOWN_REVISION)
    with pytest.raises(ApiException) as refused:
        kube.apply(body)
    assert "40" in refusal(refused.value)


@pytest.fixture
def small_volume(space: Space) -> str:
    """The class of a volume of 16 MiB, too small for any checkpoint."""
    name, path = f"small-{space.name}", f"/run/small-{space.name}"
    run = space.platform.cluster.run
    run(["mkdir", "-p", path])
    run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=1777", "tmpfs", path])
    node = space.kube.all(("v1", "Node"), "")[0]["metadata"]["name"]
    space.kube.apply(manifests.local_volume(name, node, path, size="16Mi"))
    space.kube.apply(manifests.claim("small", space.name, size="16Mi", storage_class=name))
    return "small"


@pytest.mark.complaint(3)
@pytest.mark.fault(
    "a repository or commit does not exist or is not accessible",
    "`RepositoryNotFound`, `RevisionNotFound`, `AuthFailed`",
    "a single Job, without a retry until the spec changes",
)
@pytest.mark.fault(
    "the token's Secret does not exist",
    "`TokenSecretMissing`",
    "the same Job continues automatically when it is created",
)
@pytest.mark.fault(
    "the volume is too small",
    "`InsufficientSpace`, with the missing amount",
    "nothing large is downloaded",
)
def test_source_that_is_not_available_is_a_distinct_reason_and_one_job(space: Space, small_volume: str) -> None:
    source = {"endpoint": manifests.HUB_ENDPOINT, "revision": space.platform.hub_revision}
    unknown, missing = {"repo": "demo/no-such-model"}, {"repo": manifests.REPOSITORY, "revision": UNKNOWN_REVISION}
    absent: Body = {"repo": "gated/all-MiniLM-L6-v2", "tokenSecretRef": {"name": "hub-token", "key": "token"}}
    # nothing else requests it by this name
    whole = f"slow-{space.name}/all-MiniLM-L6-v2"
    cases: dict[str, tuple[Body, str, str]] = {
        "unknown": (unknown, "artifacts", "RepositoryNotFound"),
        "missing": (missing, "artifacts", "RevisionNotFound"),
        "gated": ({"repo": "gated/all-MiniLM-L6-v2"}, "artifacts", "AuthFailed"),
        "tokenless": (absent, "artifacts", "TokenSecretMissing"),
        "full": ({"repo": whole}, small_volume, "InsufficientSpace"),
    }
    for name, (repository, claim, _) in cases.items():
        from_hub = {"huggingFace": {**source, **repository}}
        serving = NO_PODS if name == "tokenless" else None
        space.apply_model(name, source=from_hub, storage={"claimName": claim}, serving=serving)
    for name, (_, _, reason) in cases.items():
        found = space.wait_condition("ArtifactReady", reason, name)
        assert found["status"] == "False"
        assert found["message"]
    for name in cases:
        poke = {"metadata": {"annotations": {"poked": "once"}}}
        space.kube.patch(MODELS, name, space.name, poke)
    for name, (_, _, reason) in cases.items():
        assert len(space.jobs("prep", name)) == 1, name
        assert condition(space.model(name), "ArtifactReady")["reason"] == reason
        assert not space.pods(name)
    # of ninety million
    assert install.hub_sent(space.kube, whole) < 1_000_000
    (waiting,) = space.jobs("prep", "tokenless")

    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub-token", "namespace": space.name}}
    space.kube.apply({**secret, "stringData": {"token": manifests.TOKEN}})
    space.wait_current("ArtifactReady", "tokenless")
    assert [job["metadata"]["uid"] for job in space.jobs("prep", "tokenless")] == [waiting["metadata"]["uid"]]
    assert space.kube.get(SECRET, "hub-token", space.name) is not None
    # a token is a file in the prep pod, and nowhere else
    everything = everything_readable(space)
    assert "tokenless" in everything
    assert "gated/all-MiniLM-L6-v2" in everything
    assert manifests.TOKEN not in everything
    assert files_with(space, '"sha256"')
    assert files_with(space, manifests.TOKEN) == []


def everything_readable(space: Space) -> str:
    """The namespace's objects but its Secrets, what its pods have logged, and what the operator has."""
    kinds = "em,jobs,pods,events,controllerrevisions,deployments,services,configmaps,pvc"
    logs = ["-l", "encoders.dev/model", "--tail=-1", "--prefix", "--all-containers", "--ignore-errors"]
    text = space.kube.run("-n", space.name, "get", kinds, "-o", "yaml")
    text += space.kube.run("-n", space.name, "logs", *logs)
    operators = ["-l", "app.kubernetes.io/name=encoder-operator", "--tail=-1"]
    return text + space.kube.run("-n", install.OPERATOR_NAMESPACE, "logs", *operators)


def files_with(space: Space, text: str) -> list[str]:
    """The files on the volume of artifacts, half-made ones too, that hold a text."""
    find = ["exec", "client", "--", "sh", "-c", 'grep -rlF -- "$1" /artifacts || test $? = 1', "grep", text]
    return space.kube.run("-n", space.name, *find).splitlines()
