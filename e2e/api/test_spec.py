"""The spec on a real API server: its rules refuse with a sentence, its fields explain themselves, and what is rendered from it is valid."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import ApiException
from pydantic import ValidationError

from encoder_node import targets
from encoder_node.waiting import wait_for
from encoder_operator import naming
from encoder_operator.api.v1alpha1 import Spec
from encoder_operator.cli import render
from encoder_operator.client import apply_diff
from encoder_operator.manager.settings import Images, Settings
from encoder_operator.tests.harness import SETTINGS
from encoder_platform import manifests
from encoder_platform.kube import DEPLOYMENT, Body, Kube, refusal
from encoder_platform.operator_process import OperatorProcess
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn
from encoder_plugins import catalog

GOLDEN = Path(__import__("encoder_operator.resources.tests").resources.tests.__file__).parent / "golden"
CASES = sorted(path.name.removesuffix(".cr.yaml") for path in GOLDEN.glob("*.cr.yaml"))
EXAMPLES = sorted((targets.ROOT / "examples").glob("**/*.yaml"))
MANIFESTS = [*(GOLDEN / f"{name}.cr.yaml" for name in CASES), *EXAMPLES]
TRUSTING: Settings = SETTINGS.model_copy(
    update={
        "allow_trust_remote_code": True,
        "images": Images(
            operator="operator:1",
            engine={
                kind: {name: f"engine-{name}:1-{kind}" for name in catalog.plugins()} for kind in ("cpu", "nvidia")
            },
            prep={name: f"prep-{name}:1" for name in catalog.plugins()},
        ),
    }
)
SERVICE, CLAIM = ("v1", "Service"), ("v1", "PersistentVolumeClaim")

PRODUCT = "nvidia.com/gpu.product"


def gpus(limit: int | str) -> Body:
    return {"resources": {"limits": {"nvidia.com/gpu": limit}}}


UNPLACED = {"name": "cities", "sha256": "1" * 64}
SET = UNPLACED | {"url": "https://web/cities.jsonl"}
HUB_FILE = {"repo": "a/b", "revision": "1" * 40, "path": "cities.jsonl"}
OBJECT = {"uri": "s3://catalogues/cities.jsonl"}
HUB = {"huggingFace": {"repo": "a/b", "revision": "1" * 40}}
GPU = {"accelerator": "nvidia"}
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
NODES = {"weight": 1, "preference": {"matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["1", "2"]}]}}
EMPTY = {"matchExpressions": [{"key": "app", "operator": "In"}]}
BAD = [
    ({"source": {}}, "exactly one of huggingFace, s3, http and pvc"),
    ({"source": HUB | {"pvc": {"claimName": "c"}}}, "exactly one of huggingFace, s3, http and pvc"),
    ({"source": {"huggingFace": {"repo": "a/b", "revision": "main"}}}, "allowMutableRevision: true"),
    ({"storage": {}}, "exactly one of claimName and create"),
    ({"storage": {"claimName": "a", "create": {"size": "1Gi"}}}, "exactly one of claimName and create"),
    ({"storage": {"claimName": "a", "policy": "Delete"}}, "never deletes a PersistentVolumeClaim"),
    ({"serving": {"accelerator": "cpu", "quantization": "fp8"}}, "quantization needs accelerator nvidia"),
    (
        {"serving": {"accelerator": "cpu", "tensorParallelSize": 2}},
        "tensorParallelSize above 1 needs accelerator nvidia",
    ),
    ({"serving": {"accelerator": "cpu", "acceleratorProduct": "NVIDIA-L4"}}, "acceleratorProduct needs accelerator"),
    ({"serving": GPU | {"enginesPerAccelerator": 2}}, "needs apiServerCount above 1"),
    ({"serving": GPU | {"enginesPerAccelerator": 2, "apiServerCount": 1}}, "needs apiServerCount above 1"),
    (
        {"serving": GPU | {"enginesPerAccelerator": 2, "apiServerCount": 2, "tensorParallelSize": 2}},
        "cannot both be above 1",
    ),
    ({"serving": GPU | {"resourceClaims": [{"name": "gpu"}]}}, "exactly one of resourceClaimName and"),
    (
        {"serving": GPU | {"acceleratorProduct": "NVIDIA-L4", "nodeSelector": {PRODUCT: "NVIDIA-H200"}}},
        "sets another",
    ),
    ({"serving": GPU | gpus(2) | {"tensorParallelSize": 4}}, "nvidia.com/gpu must equal tensorParallelSize"),
    ({"serving": GPU | gpus("4") | {"tensorParallelSize": 2}}, "nvidia.com/gpu must equal tensorParallelSize"),
    ({"serving": GPU | gpus(0)}, "nvidia.com/gpu must equal tensorParallelSize"),
    (
        {"serving": GPU | gpus(1) | {"resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}},
        "a limit of nvidia.com both request GPUs",
    ),
    ({"serving": GPU | {"limits": {"in_flight": 8}, "maxInFlight": 8}}, "in_flight set the same limit: remove one"),
    ({"rollout": {"maxSurge": 0, "maxUnavailable": "0%"}}, "cannot both be 0"),
    ({"labelSets": [UNPLACED]}, "exactly one of configMapRef, url, huggingFace and s3"),
    ({"labelSets": [SET | {"configMapRef": {"name": "c"}}]}, "exactly one of configMapRef, url, huggingFace and s3"),
    ({"labelSets": [SET | {"huggingFace": HUB_FILE}]}, "exactly one of configMapRef, url, huggingFace and s3"),
    ({"labelSets": [SET | {"s3": OBJECT}]}, "exactly one of configMapRef, url, huggingFace and s3"),
    (
        {"labelSets": [UNPLACED | {"s3": OBJECT, "huggingFace": HUB_FILE}]},
        "exactly one of configMapRef, url, huggingFace and s3",
    ),
    ({"labelSets": [UNPLACED | {"huggingFace": HUB_FILE | {"path": "a/../b"}}]}, "path must not contain '..'"),
    ({"source": {"pvc": {"claimName": "c", "path": "../x"}}}, "must not contain '..'"),
    ({"network": {"service": {"annotations": {"encoders.dev/x": "y"}}}}, "annotations with the prefix encoders.dev"),
    (
        {"prepare": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}},
        "operator Exists must not have a value",
    ),
    ({"prepare": {"tolerations": [{}]}}, "without a key needs operator Exists"),
    ({"prepare": {"tolerations": [{"key": "a", "tolerationSeconds": 5}]}}, "needs effect NoExecute"),
    ({"serving": GPU | {"topologySpreadConstraints": [SPREAD | {"minDomains": 2}]}}, "minDomains needs"),
    ({"serving": GPU | {"affinity": {"nodeAffinity": {PREFERRED: [NODES]}}}}, "Gt and Lt one"),
    ({"network": {"networkPolicy": {"from": [{"podSelector": EMPTY}]}}}, "In and NotIn need values"),
    ({"network": {"networkPolicy": {"from": [{}]}}}, "a peer must have a namespaceSelector"),
]
# refused by the API server with the sentence, by the operator with its own words
BAD_FIELDS = [
    ({"rollout": {"maxSurge": -1}}, "spec.rollout.maxSurge in body should be greater than or equal to 0"),
    ({"storage": {"create": {"size": -1}}}, "spec.storage.create.size in body should be greater than or equal to 0"),
    (
        {"prepare": {"parameters": {"wordsSplitter": "spacy"}}},
        'prepare.parameters.wordsSplitter: Unsupported value: "spacy"',
    ),
    ({"labelSets": [SET, SET]}, 'duplicate entries for key [name="cities"]'),
    ({"labelSets": [SET | {"sha256": "1" * 63}]}, "labelSets[0].sha256"),
    ({"labelSets": [SET | {"name": "Cities"}]}, "labelSets[0].name"),
    ({"labelSets": [UNPLACED | {"huggingFace": HUB_FILE | {"path": "/cities.jsonl"}}]}, "huggingFace.path"),
    (
        {"labelSets": [UNPLACED | {"huggingFace": HUB_FILE | {"revision": "main"}}]},
        "must be a commit of 40 hexadecimal",
    ),
    (
        {"labelSets": [UNPLACED | {"huggingFace": HUB_FILE | {"type": "space"}}]},
        'huggingFace.type: Unsupported value: "space"',
    ),
    ({"labelSets": [UNPLACED | {"s3": {"uri": "s3://catalogues/"}}]}, "labelSets[0].s3.uri"),
    ({"labelSets": [UNPLACED | {"s3": {"uri": "s3://catalogues/folder/"}}]}, "labelSets[0].s3.uri"),
    ({"labelSets": [SET | {"name": f"c{number}"} for number in range(17)]}, "must have at most 16 items"),
    ({"serving": GPU | {"limits": {"texts": 0}}}, "greater than or equal to 1"),
    ({"serving": GPU | {"args": ["--port=9"]}}, "reserved for the operator"),
    ({"serving": GPU | {"args": ["-tp=9"]}}, "reserved for the operator"),
    ({"serving": GPU | {"env": [{"name": "A"}, {"name": "VLLM_PLUGINS"}]}}, "env contains a variable that is reserved"),
    ({"prepare": {"env": [{"name": "LD_PRELOAD", "value": "x"}]}}, "env contains a variable that is reserved"),
    ({"serving": GPU | {"loadFormat": "tensorizer"}}, "artifacts contain only safetensors"),
    ({"serving": {"accelerator": "cpu", "loadFormat": "fastsafetensors"}}, "fastsafetensors needs accelerator nvidia"),
    ({"serving": {"accelerator": "cpu", "loadFormat": "runai_streamer"}}, "package runai-model-streamer"),
]
GOOD: list[Body] = [
    {"rollout": {"strategy": "Recreate", "maxSurge": 0, "maxUnavailable": 0}},
    {"rollout": {"maxSurge": "25%", "maxUnavailable": 1}},
    {"source": {"huggingFace": {"repo": "a/b", "revision": "main", "allowMutableRevision": True}}},
    {"source": {"s3": {"uri": "s3://models/a/b", "credentialsSecretRef": {"name": "s"}}}},
    {"source": {"http": {"url": "http://web/m.tar", "sha256": "2" * 64}}},
    {
        "labelSets": [
            SET,
            UNPLACED | {"name": "a" * 63, "configMapRef": {"name": "c"}},
            UNPLACED | {"name": "b", "huggingFace": HUB_FILE},
            UNPLACED | {"name": "c", "huggingFace": HUB_FILE | {"type": "model", "path": "my data/c"}},
            UNPLACED | {"name": "d", "s3": OBJECT},
        ]
    },
    {"serving": GPU | {"enginesPerAccelerator": 1}},
    {"serving": GPU | {"limits": {"texts": 512, "body_bytes": 1048576}, "maxInFlight": 8}},
    {"serving": GPU | {"tensorParallelSize": 4}},
    {"serving": GPU | gpus("4") | {"tensorParallelSize": 4}},
    # one GPU of several wastes the others, and always could
    {"serving": GPU | gpus(2)},
    {"serving": {"accelerator": "cpu"} | gpus(0)},
    {"serving": GPU | {"acceleratorProduct": "NVIDIA-L4", "nodeSelector": {PRODUCT: "NVIDIA-L4", "disk": "ssd"}}},
    {
        "serving": GPU
        | {"resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}], "resources": {"limits": {"cpu": 1}}}
    },
    {"serving": GPU | {"loadFormat": "fastsafetensors"}},
    {"serving": {"accelerator": "cpu", "loadFormat": "runai_streamer"}, "image": "mine:1"},
    {"serving": GPU | {"env": [{"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"}]}},
    {"serving": GPU | {"podTemplate": {"spec": {"containers": [{"name": "engine", "env": [{"name": "A"}]}]}}}},
    {"network": {"networkPolicy": {}}},
    {"network": {"networkPolicy": {"from": [{"podSelector": {}}]}}},
]


# what the API server completes in its own way
AWKWARD: Body = {
    "spec": {
        "containers": [
            {
                "name": "engine",
                "env": [
                    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                    {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                ],
            },
            {
                "name": "side",
                "image": "side:1",
                "ports": [{"containerPort": 9}],
                "readinessProbe": {"httpGet": {"port": 9}},
                "resources": {"limits": {"cpu": 1, "memory": "1024Mi"}},
            },
        ],
        "volumes": [
            {
                "name": "where",
                "projected": {
                    "sources": [
                        {"downwardAPI": {"items": [{"path": "node", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                        {"configMap": {"name": "c", "items": [{"key": "a", "path": "b"}]}},
                    ]
                },
            },
            {"name": "more", "emptyDir": {"sizeLimit": "1024Mi"}},
            {"name": "words", "configMap": {"name": "c"}},
        ],
    }
}


def manifest(scene: Scene, spec: Body) -> Body:
    base: Body = {
        "plugin": "sentence_transformer",
        "source": HUB,
        "storage": {"claimName": "artifacts"},
        "serving": {"accelerator": "cpu"},
    }
    return {
        "apiVersion": "encoders.dev/v1alpha1",
        "kind": "EncoderModel",
        "metadata": {"name": "spec", "namespace": scene.name},
        "spec": base | spec,
    }


def dry_run(kube: Kube, *found: Body) -> list[Body]:
    """Let the API server say what it would make of manifests, unknown fields refused."""
    documents = yaml.safe_dump_all(json.loads(json.dumps(found)))
    options = ("--server-side", "--dry-run=server", "--validate=strict", "--force-conflicts", "-o", "json")
    answer: Body = json.loads(kube.run("apply", *options, "-f", "-", stdin=documents))
    return answer["items"] if answer["kind"] == "List" else [answer]


@pytest.mark.parametrize(("spec", "sentence"), BAD, ids=[str(spec)[:70] for spec, _ in BAD])
def test_the_api_server_and_the_operator_refuse_with_the_same_sentence(scene: Scene, spec: Body, sentence: str) -> None:
    wanted = manifest(scene, spec)
    with pytest.raises(ApiException) as refused:
        scene.kube.apply(wanted)
    assert sentence in refusal(refused.value)
    with pytest.raises(ValidationError, match=sentence.split(":")[0]):
        Spec.model_validate(wanted["spec"])


@pytest.mark.parametrize(("spec", "sentence"), BAD_FIELDS, ids=[str(spec)[:70] for spec, _ in BAD_FIELDS])
def test_a_bad_field_is_saidby_the_api_server_with_a_sentence(scene: Scene, spec: Body, sentence: str) -> None:
    with pytest.raises(ApiException) as refused:
        scene.kube.apply(manifest(scene, spec))
    assert sentence in refusal(refused.value)


CREATE = {"size": "1Gi", "storageClassName": "standard"}
IMMUTABLE = [
    ({"plugin": "mmbert_gliner"}, "plugin is immutable: create another EncoderModel to use another plugin"),
    ({"storage": {"create": CREATE | {"storageClassName": "fast"}}}, "only the size"),
    ({"storage": {"create": {"size": "1Gi"}}}, "only the size"),
    ({"storage": {"create": CREATE | {"accessModes": ["ReadWriteMany"]}}}, "only the size"),
]


@pytest.mark.parametrize(("change", "sentence"), IMMUTABLE, ids=[str(change)[:70] for change, _ in IMMUTABLE])
def test_what_cannot_change_is_kept_by_the_api_server(scene: Scene, change: Body, sentence: str) -> None:
    before = manifest(scene, {"storage": {"create": CREATE}})
    scene.kube.apply(before)
    with pytest.raises(ApiException) as refused:
        scene.kube.apply(manifest(scene, {"storage": {"create": CREATE}} | change))
    assert sentence in refusal(refused.value)
    live = scene.model("spec")["spec"]
    assert (live["plugin"], live["storage"]["create"]) == (
        before["spec"]["plugin"],
        CREATE | {"accessModes": ["ReadWriteOnce"]},
    )


def test_size_and_policy_of_a_created_volume_can_change(scene: Scene) -> None:
    for storage in (
        {"create": CREATE, "policy": "Retain"},
        {"create": CREATE | {"size": "2Gi"}, "policy": "Retain"},
        # takes a raise back that the StorageClass did not allow
        {"create": CREATE, "policy": "Delete"},
        {"claimName": "artifacts", "policy": "Retain"},
    ):
        scene.kube.apply(manifest(scene, {"storage": storage}))
        found = scene.model("spec")["spec"]["storage"]
        found.get("create", {}).pop("accessModes", None)
        assert found == storage


def test_what_is_right_is_accepted_by_both(scene: Scene) -> None:
    for spec in GOOD:
        wanted = manifest(scene, spec)
        (made,) = dry_run(scene.kube, wanted)
        # with what the API server adds as defaults, and without
        assert Spec.model_validate(made["spec"]) == Spec.model_validate(wanted["spec"])


def test_defaults_of_the_api_server_are_those_of_the_operator(scene: Scene) -> None:
    (made,) = dry_run(scene.kube, manifest(scene, {}))
    found = made["spec"]
    assert found["rollout"] == {
        "strategy": "RollingUpdate",
        "maxSurge": 1,
        "maxUnavailable": 0,
        "minReadySeconds": 5,
        "progressDeadlineSeconds": 1800,
        "updatePolicy": "Manual",
    }
    assert found["network"] == {"service": {"type": "ClusterIP", "port": 80}}
    assert found["serving"]["loadFormat"] == "auto"
    assert found["serving"]["tensorParallelSize"] == 1


def test_a_field_explains_itself(kube: Kube) -> None:
    # discovery follows a new CustomResourceDefinition after some seconds
    strategy = wait_for("the field's text", lambda: _explained(kube, "em.spec.rollout.strategy"), seconds=60)
    assert "ENUM:" in strategy
    assert "for a cluster with a single GPU" in " ".join(strategy.split())
    everything = kube.run("explain", "em.spec", "--recursive")
    for field in ("podTemplate", "allowMutableRevision", "progressDeadlineSeconds", "networkPolicy", "resourceClaims"):
        assert field in everything


def _explained(kube: Kube, path: str) -> str | None:
    text = kube.run("explain", path, check=False)
    return text if "DESCRIPTION:" in text else None


def test_every_plugin_has_an_example() -> None:
    found = [yaml.safe_load(path.read_text())["spec"] for path in EXAMPLES]
    assert {spec["plugin"]: spec["source"]["huggingFace"]["repo"] for spec in found} == {
        name: plugin.example_model for name, plugin in catalog.plugins().items()
    }
    for spec in found:
        Spec.model_validate(spec)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_what_is_rendered_is_valid_and_its_pods_fit_the_restricted_profile(scene: Scene, path: Path) -> None:
    live = yaml.safe_load(path.read_text())
    live["metadata"]["namespace"] = scene.name
    children = render.render_children(live, TRUSTING, render.ClusterFacts(one_node=True))
    pods: list[Body] = []
    for child in children:
        template = copy.deepcopy(child.get("spec", {}).get("template"))
        if template is not None:
            # the namespace refuses pods, not what makes them; the classes are another administrator's
            spec = {key: value for key, value in template["spec"].items() if not key.endswith("ClassName")}
            metadata = {"name": f"pod-{len(pods)}", "namespace": scene.name}
            pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    assert len(pods) == 3
    # the Gateway API is not there
    wanted = [child for child in children if child["kind"] != "HTTPRoute"]
    assert len(dry_run(scene.kube, live, *wanted, *pods)) == 1 + len(wanted) + 3


@pytest.mark.parametrize("name", CASES)
def test_what_was_applied_is_found_as_it_was_wanted(scene: Scene, name: str) -> None:
    """Else each look of the operator would write again, for ever."""
    live = yaml.safe_load((GOLDEN / f"{name}.cr.yaml").read_text())
    live["metadata"]["namespace"] = scene.name
    live["spec"]["serving"].setdefault("podTemplate", AWKWARD)
    found = render.render_children(live, TRUSTING, render.ClusterFacts(one_node=True))
    wanted = {child["kind"] + child["metadata"]["name"]: child for child in found if child["kind"] != "HTTPRoute"}
    for child in wanted.values():
        # the garbage collector would take away what nobody owns
        child["metadata"].pop("ownerReferences", None)
    options = ("--server-side", f"--field-manager={naming.MANAGER}", "--show-managed-fields", "-o", "json")
    documents = yaml.safe_dump_all(json.loads(json.dumps(list(wanted.values()))))
    made = json.loads(scene.kube.run("apply", *options, "-f", "-", stdin=documents))["items"]
    assert len(made) == len(wanted)
    for live in made:
        key = live["kind"] + live["metadata"]["name"]
        assert apply_diff.is_up_to_date(wanted[key], live), key


def test_objects_follow_a_spec_from_one_kind_to_the_other_and_back(scene: Scene) -> None:
    """What one apply leaves out, the API server takes away: no field stays behind that a later one stumbles over."""

    def apply(spec: Body) -> tuple[Any, Any]:
        live = manifest(scene, spec)
        wanted = {
            child["kind"]: child
            for child in render.render_children(live, TRUSTING)
            if child["kind"] in ("Deployment", "Service")
        }
        for child in wanted.values():
            # the garbage collector would take away what nobody owns
            del child["metadata"]["ownerReferences"]
            scene.kube.apply(child)
        found = [scene.kube.get(kind, "spec", scene.name) for kind in (DEPLOYMENT, SERVICE)]
        assert found[0] is not None
        assert found[1] is not None
        return found[0]["spec"], found[1]

    recreate, balanced = apply(
        {
            "rollout": {"strategy": "Recreate", "minReadySeconds": 0},
            "network": {"service": {"type": "LoadBalancer", "port": 8080, "annotations": {"a": "b"}}},
        }
    )
    assert recreate["strategy"] == {"type": "Recreate"}
    assert "minReadySeconds" not in recreate
    assert balanced["spec"]["type"] == "LoadBalancer"
    assert balanced["spec"]["ports"][0]["nodePort"]
    rolling, plain = apply({"rollout": {"maxSurge": "50%"}})
    assert rolling["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "50%", "maxUnavailable": 0}}
    assert rolling["minReadySeconds"] == 5
    assert plain["spec"]["type"] == "ClusterIP"
    assert [port["port"] for port in plain["spec"]["ports"]] == [80]
    assert "nodePort" not in plain["spec"]["ports"][0]
    assert "annotations" not in plain["metadata"]
    again, _ = apply({"rollout": {"strategy": "Recreate"}})
    assert again["strategy"] == {"type": "Recreate"}


def test_a_created_volume_grows_where_its_class_allows_that(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    classes = {"growing": f"growing-{scene.name}", "stiff": "standard"}
    growing = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": classes["growing"]},
        "provisioner": "kubernetes.io/no-provisioner",
        "allowVolumeExpansion": True,
    }
    scene.kube.apply(growing)
    try:
        for model, storage_class in classes.items():
            create = {"size": "1Gi", "storageClassName": storage_class, "accessModes": ["ReadWriteMany"]}
            scene.apply_model(model, storage={"create": create, "policy": "Retain"}, rollout={"minReadySeconds": 0})
        served = {
            model: scene.wait_current("Ready", model, seconds=60)["status"]["activeRevision"] for model in classes
        }

        def size(model: str) -> str:
            found = scene.kube.get(CLAIM, f"{model}-artifacts", scene.name)
            assert found is not None
            return str(found["spec"]["resources"]["requests"]["storage"])

        for model in classes:
            scene.patch({"storage": {"create": {"size": "2048Mi"}}}, model)
        wait_for("the claim has grown", lambda: size("growing") == "2Gi", seconds=90)
        refused = scene.wait_condition("Degraded", "WriteRefused", "stiff", seconds=90)
        assert "the storageclass that provisions the pvc must support resize" in refused["message"]
        assert size("stiff") == "1Gi"
        # what serves is no other for that, and the raise can be taken back
        scene.patch({"storage": {"create": {"size": "1Gi"}}}, "stiff")
        scene.wait_condition("Degraded", "AsExpected", "stiff", seconds=60)
        for model, revision in served.items():
            assert scene.wait_current("Ready", model, seconds=90)["status"]["activeRevision"] == revision
            assert len(scene.jobs("prep", model)) == 1
    finally:
        scene.kube.delete(("storage.k8s.io/v1", "StorageClass"), classes["growing"])


def test_a_single_pod_pvc_is_reported_by_name(scene: Scene, operator: OperatorProcess) -> None:
    alone = manifests.claim("alone", scene.name)
    alone["spec"]["accessModes"] = ["ReadWriteOncePod"]
    scene.kube.apply(alone)
    scene.apply_model(storage={"claimName": "alone"})
    assert (
        "PersistentVolumeClaim alone is ReadWriteOncePod" in scene.wait_condition("Accepted", "OnePodOnly")["message"]
    )
    assert scene.jobs("prep") == []
