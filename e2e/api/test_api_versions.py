"""How v1beta1 will come: the steps of `docs/api-versions.md` on a scratch definition with today's schema, and the limits on its size."""

import base64
import copy
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from encoder_node.waiting import wait_for
from encoder_operator.api.v1alpha1 import crd
from encoder_platform import manifests
from encoder_platform.kube import Body, Kube
from encoder_platform.plane import CRD, Plane, established
from encoder_platform.scene import Scene

GROUP, PLURAL = "scratch.dev", "encodermodels"
NAME = f"{PLURAL}.{GROUP}"
OLD, NEW = f"{GROUP}/v1alpha1", f"{GROUP}/v1beta1"
ETCD_BYTES = 1536 * 1024


def definition(stored: str, *served: str) -> Body:
    """Return the definition under another group, with versions of one schema."""
    found = copy.deepcopy(crd.build())
    (version,) = found["spec"]["versions"]
    found["metadata"]["name"] = NAME
    found["spec"]["group"] = GROUP
    # not the names of the real one
    found["spec"]["names"] |= {"shortNames": ["scratch"], "categories": []}
    names = ["v1alpha1", "v1beta1"] if len(served) > 1 or stored == "v1beta1" else ["v1alpha1"]
    found["spec"]["versions"] = [
        copy.deepcopy(version)
        | {"name": name, "served": name in served, "storage": name == stored}
        | ({"deprecated": True} if name == "v1alpha1" and len(names) > 1 else {})
        for name in names
    ]
    return found


def install(kube: Kube, body: Body) -> None:
    kube.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(body))
    served = {version["name"] for version in body["spec"]["versions"] if version["served"]}

    def discovered() -> bool:
        if not established(kube, NAME):
            return False
        group = kube.run("get", "--raw", f"/apis/{GROUP}", check=False)
        return {entry["version"] for entry in json.loads(group)["versions"]} == served if group[:1] == "{" else False

    wait_for(f"versions {served}", discovered, seconds=60)


def read(kube: Kube, version: str, namespace: str) -> Body:
    found: Body = json.loads(kube.run("get", "--raw", f"/apis/{version}/namespaces/{namespace}/{PLURAL}/minilm"))
    return found


def in_etcd(plane: Plane, name: str) -> bytes:
    """Return what etcd has stored of a definition."""
    key = base64.b64encode(f"/registry/apiextensions.k8s.io/customresourcedefinitions/{name}".encode()).decode()
    (found,) = plane.control._etcd("kv/range", {"key": key})["kvs"]
    return base64.b64decode(found["value"])


@pytest.fixture
def scratch(kube: Kube) -> Iterator[None]:
    yield
    kube.run("delete", "crd", NAME, "--ignore-not-found")


def wait_for_the_garbage_collector(kube: Kube, scene: Scene, version: str, name: str) -> None:
    """Wait until the garbage collector follows a version: twice a minute it starts to watch what is new.

    Until then it sees no owner go. An owner that is deleted in the foreground goes only when the collector has seen it: a child of an
    owner that it never saw goes, too, since the owner is looked up.
    """
    body = manifests.encoder_model(name, scene.name, revision="1" * 40) | {"apiVersion": version}
    kube.run("apply", "--server-side", "-f", "-", stdin=json.dumps(body))
    resource = f"{PLURAL}.{version.partition('/')[2]}.{GROUP}"
    kube.run("-n", scene.name, "delete", resource, name, "--cascade=foreground", "--timeout=240s", seconds=250)


@contextmanager
def until_watches_end(kube: Kube, scene: Scene, version: str) -> Iterator[None]:
    """Leave the block when the API server has ended all watches of a version that the block stops serving: about a second later.

    The garbage collector's own is one of them. What it first sees through that watch, it would look for in that version for ever.
    """
    path = f"/apis/{version}/namespaces/{scene.name}/{PLURAL}?watch=1&timeoutSeconds=300"
    command = [str(kube.kubectl), "get", "--raw", path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=kube.environment()) as watch:
        try:
            assert watch.stdout is not None
            # an object that is there already: the watch has begun
            assert watch.stdout.readline()
            yield
            watch.communicate(timeout=120)
        finally:
            watch.kill()


@pytest.mark.usefixtures("scratch")
def test_v1beta1_comes_and_v1alpha1_goes_without_a_change_to_any_model(kube: Kube, scene: Scene) -> None:
    # today
    install(kube, definition("v1alpha1", "v1alpha1"))
    wait_for_the_garbage_collector(kube, scene, OLD, "first")
    body = manifests.encoder_model("minilm", scene.name, revision="1" * 40) | {"apiVersion": OLD}
    kube.run("apply", "--server-side", "-f", "-", stdin=json.dumps(body))
    status = {"status": {"phase": "Serving", "activeRevision": "0123456789", "observedGeneration": 1, "replicas": 1}}
    of_old = f"{PLURAL}.v1alpha1.{GROUP}"
    kube.run(
        "-n", scene.name, "patch", of_old, "minilm", "--subresource=status", "--type=merge", "-p", json.dumps(status)
    )
    before = read(kube, OLD, scene.name)
    owner = {
        "apiVersion": OLD,
        "kind": "EncoderModel",
        "name": "minilm",
        "uid": before["metadata"]["uid"],
        "controller": True,
    }
    child = {"name": "child", "namespace": scene.name, "ownerReferences": [owner]}
    kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": child})

    def same(version: str) -> bool:
        found = read(kube, version, scene.name)
        kept = ("uid", "generation", "name")
        assert found["apiVersion"] == version
        assert {key: found["metadata"][key] for key in kept} == {key: before["metadata"][key] for key in kept}
        return bool(found["spec"] == before["spec"] and found["status"] == before["status"])

    # release 1: both are served
    install(kube, definition("v1alpha1", "v1alpha1", "v1beta1"))
    assert same(OLD)
    assert same(NEW)
    # what is written through one version is there in the other, with every field
    kube.run("-n", scene.name, "scale", f"{PLURAL}.v1beta1.{GROUP}/minilm", "--replicas=3")
    assert read(kube, OLD, scene.name)["spec"]["serving"]["replicas"] == 3
    kube.run(
        "-n", scene.name, "scale", f"{of_old}/minilm", f"--replicas={before['spec']['serving'].get('replicas', 1)}"
    )
    before["metadata"]["generation"] += 2
    assert same(NEW)
    # the schema and its rules hold in both
    wrong = json.dumps({"spec": {"serving": {"accelerator": "cpu", "quantization": "fp8"}}})
    for version in ("v1alpha1", "v1beta1"):
        patch = ("patch", f"{PLURAL}.{version}.{GROUP}", "minilm", "--type=merge", "-p", wrong)
        assert "needs accelerator nvidia" in kube.run("-n", scene.name, *patch, check=False)
    # release 2: the operator applies its children with the new version in their owner references
    install(kube, definition("v1beta1", "v1alpha1", "v1beta1"))
    assert same(OLD)
    assert same(NEW)
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": child | {"ownerReferences": [owner | {"apiVersion": NEW}]},
        }
    )
    live = kube.get(("v1", "ConfigMap"), "child", scene.name)
    assert live is not None
    assert [entry["apiVersion"] for entry in live["metadata"]["ownerReferences"]] == [NEW]
    # release 3: every object is written once, and the old version is stored no more
    found = kube.get(CRD, NAME)
    assert found is not None
    assert found["status"]["storedVersions"] == ["v1alpha1", "v1beta1"]
    kube.run("-n", scene.name, "replace", "-f", "-", stdin=json.dumps(read(kube, NEW, scene.name)))
    stored = json.dumps({"status": {"storedVersions": ["v1beta1"]}})
    kube.run("patch", "crd", NAME, "--subresource=status", "--type=merge", "-p", stored)
    # release 4
    with until_watches_end(kube, scene, OLD):
        install(kube, definition("v1beta1", "v1beta1"))
    assert same(NEW)
    # and the garbage collector still finds the owner
    wait_for_the_garbage_collector(kube, scene, NEW, "last")
    kube.run("-n", scene.name, "delete", f"{PLURAL}.v1beta1.{GROUP}", "minilm")
    wait_for("the child gone", lambda: kube.get(("v1", "ConfigMap"), "child", scene.name) is None, seconds=120)


@pytest.mark.usefixtures("scratch")
def test_a_field_that_only_one_version_has_is_lost_by_an_update_through_the_other(kube: Kube, scene: Scene) -> None:
    both = definition("v1beta1", "v1alpha1", "v1beta1")
    spec = both["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    spec["later"] = {"type": "string"}
    install(kube, both)
    body = manifests.encoder_model("minilm", scene.name, revision="1" * 40) | {"apiVersion": NEW}
    body["spec"]["later"] = "kept"
    kube.run("apply", "--server-side", "-f", "-", stdin=json.dumps(body))
    assert read(kube, NEW, scene.name)["spec"]["later"] == "kept"
    old = read(kube, OLD, scene.name)
    assert "later" not in old["spec"]
    old["spec"]["suspend"] = True
    kube.run("-n", scene.name, "replace", "-f", "-", stdin=json.dumps(old))
    # why the rules say that a field is added to both
    assert "later" not in read(kube, NEW, scene.name)["spec"]


@pytest.mark.usefixtures("scratch")
def test_two_versions_with_nine_more_plugins_can_be_stored_and_applied_client_side(plane: Plane, kube: Kube) -> None:
    both = definition("v1beta1", "v1alpha1", "v1beta1")
    for version in both["spec"]["versions"]:
        spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        spec["plugin"]["enum"] += [f"{'planned_plugin_with_a_long_name':_<38}{number:02}" for number in range(9)]
    # the annotation of client-side apply is limited to 256 KiB
    kube.run("apply", "-f", "-", stdin=json.dumps(both))
    wait_for("the scratch API", lambda: established(kube, NAME), seconds=60)
    size, today = len(in_etcd(plane, NAME)), len(in_etcd(plane, "encodermodels.encoders.dev"))
    print(f"in etcd: {today} bytes today, {size} bytes with two versions, nine more plugins and the annotation")
    assert size < ETCD_BYTES / 4
