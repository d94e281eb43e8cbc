"""Nothing of a spec is accepted and ignored: every field of the schema changes what is applied, or is used where this table says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from encoder_operator.api.v1alpha1 import crd
from encoder_operator.cli import render
from encoder_operator.revisions.hashing import Json, canonical_json
from encoder_operator.tests.harness import SETTINGS, with_fields
from encoder_operator.validation.errors import NotAccepted

SCHEMA = crd.build()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
IMAGES = SETTINGS.images.model_copy(
    update={
        "prep": {
            **SETTINGS.images.prep,
            "mt5_gliner": "prep:1",
            "colqwen3": "prep:2",
            "deberta_gliner_linker": "prep:3",
        }
    }
)
TRUSTING = SETTINGS.model_copy(
    update={"allow_trust_remote_code": True, "prep_service_accounts": ["reader"], "images": IMAGES}
)

# what shows in no manifest: it decides when one is applied
ELSEWHERE = {
    "paused": "decide: nothing is written",
    "parity.mode": "verification: whether there is a parity Job, and what its verdict opens",
    "rollout.updatePolicy": "automatic_update: when newer defaults make a new revision",
    "rollout.progressDeadlineSeconds": "deadline: the operator's own clock",
    "source.huggingFace.allowMutableRevision": "the rule beside it: whether revision may be a branch",
}

HUB: Json = {"repo": "a/b", "revision": "1" * 40}
CLAIM: Json = {"create": {"size": "1Gi", "accessModes": ["ReadWriteMany"]}, "policy": "Retain"}
GPU: Json = {"accelerator": "nvidia"}
BUCKET: Json = {"uri": "s3://models/a"}
WEB: Json = {"url": "http://web/m.tar", "sha256": "2" * 64}
LABELS: Json = {"name": "catalogue", "sha256": "2" * 64, "url": "http://web/a.jsonl"}
HUB_FILE: Json = {"name": "catalogue", "sha256": "2" * 64, "huggingFace": HUB | {"path": "a.jsonl"}}
MOUNTED: Json = {"name": "catalogue", "sha256": "2" * 64, "configMapRef": {"name": "a"}}
OBJECT: Json = {"name": "catalogue", "sha256": "2" * 64, "s3": {"uri": "s3://catalogues/a"}}
ROUTE: Json = {"parentRefs": [{"name": "gw"}]}
SELECTOR: Json = {"matchLabels": {"app": "client"}}
EXPRESSION: Json = {"key": "app", "operator": "In", "values": ["client"]}
POD_TERM: Json = {"topologyKey": "zone", "labelSelector": SELECTOR}
NODE_TERM: Json = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
SPREAD: Json = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
DEVICE: Json = {"name": "gpu", "resourceClaimName": "c"}
REQUIRED, PREFERRED = (f"{word}DuringSchedulingIgnoredDuringExecution" for word in ("required", "preferred"))


def selector(path: str, before: Any) -> dict[str, tuple[Any, Any]]:
    """Return the rows of a label selector that stands at ``path``."""

    def at(found: Json) -> Any:
        return before(found)

    return {
        f"{path}.matchLabels": (at({"matchLabels": {"a": "1"}}), at({"matchLabels": {"a": "2"}})),
        f"{path}.matchExpressions.key": (
            at({"matchExpressions": [EXPRESSION]}),
            at({"matchExpressions": [EXPRESSION | {"key": "b"}]}),
        ),
        f"{path}.matchExpressions.operator": (
            at({"matchExpressions": [EXPRESSION]}),
            at({"matchExpressions": [EXPRESSION | {"operator": "NotIn"}]}),
        ),
        f"{path}.matchExpressions.values": (
            at({"matchExpressions": [EXPRESSION]}),
            at({"matchExpressions": [EXPRESSION | {"values": ["b"]}]}),
        ),
    }


def one(path: str, first: Any, second: Any, **around: Any) -> dict[str, tuple[Json, Json]]:
    """Return a row: two specs that differ in the field at ``path`` (a list's first entry is meant)."""
    return {path: (_with(path, first, around), _with(path, second, around))}


def _with(path: str, value: Any, around: Json) -> Json:
    *folders, name = path.split(".")
    found: Json = {name: value} if value is not None else {}
    for folder in reversed(folders):
        found = {folder: found}
    joined: Json = _joined(around, found)
    return joined


def _joined(base: Any, over: Any) -> Any:
    if isinstance(base, list) and isinstance(over, dict):
        return [_joined(base[0], over), *base[1:]]
    if isinstance(base, dict) and isinstance(over, dict):
        return base | {key: _joined(base[key], value) if key in base else value for key, value in over.items()}
    return over


def node_terms(path: str, around: Any) -> dict[str, tuple[Json, Json]]:
    rows: dict[str, tuple[Json, Json]] = {}
    label = {"key": "disk", "operator": "In", "values": ["ssd"]}
    name = {"key": "metadata.name", "operator": "In", "values": ["node-1"]}
    for kind, base, other in (
        ("matchExpressions", label, {"key": "cpu", "operator": "NotIn", "values": ["hdd"]}),
        ("matchFields", name, {"operator": "NotIn", "values": ["node-2"]}),
    ):
        for field, value in other.items():
            rows[f"{path}.{kind}.{field}"] = (around({kind: [base]}), around({kind: [base | {field: value}]}))
    # nodes can be selected by one field only
    rows[f"{path}.matchFields.key"] = (around({"matchExpressions": [label]}), around({"matchFields": [name]}))
    return rows


def pod_terms(path: str, around: Any) -> dict[str, tuple[Json, Json]]:
    return {
        f"{path}.topologyKey": (around(POD_TERM), around(POD_TERM | {"topologyKey": "rack"})),
        f"{path}.namespaces": (around(POD_TERM), around(POD_TERM | {"namespaces": ["other"]})),
        **selector(f"{path}.labelSelector", lambda found: around({"topologyKey": "zone", "labelSelector": found})),
        **selector(f"{path}.namespaceSelector", lambda found: around(POD_TERM | {"namespaceSelector": found})),
    }


def affinity(kind: str) -> dict[str, tuple[Json, Json]]:
    path = f"serving.affinity.{kind}"

    def at(found: Json) -> Json:
        return {"serving": {"affinity": {kind: found}}}

    return {
        **pod_terms(f"{path}.{REQUIRED}", lambda term: at({REQUIRED: [term]})),
        **pod_terms(
            f"{path}.{PREFERRED}.podAffinityTerm",
            lambda term: at({PREFERRED: [{"weight": 1, "podAffinityTerm": term}]}),
        ),
        f"{path}.{PREFERRED}.weight": (
            at({PREFERRED: [{"weight": 1, "podAffinityTerm": POD_TERM}]}),
            at({PREFERRED: [{"weight": 2, "podAffinityTerm": POD_TERM}]}),
        ),
    }


def nodes(found: Json) -> Json:
    return {"serving": {"affinity": {"nodeAffinity": found}}}


def policy(peer: Json) -> Json:
    return {"network": {"networkPolicy": {"from": [peer]}}}


ROWS: dict[str, tuple[Json, Json]] = {
    **one("image", None, "mine:1"),
    **one("suspend", False, True),
    **one("source.huggingFace.repo", "a/b", "a/c", source={"huggingFace": HUB}),
    **one("source.huggingFace.revision", "1" * 40, "2" * 40, source={"huggingFace": HUB}),
    **one("source.huggingFace.endpoint", None, "http://mirror", source={"huggingFace": HUB}),
    **one("source.huggingFace.tokenSecretRef.name", "a", "b", source={"huggingFace": HUB}),
    **one(
        "source.huggingFace.tokenSecretRef.key",
        "a",
        "b",
        source={"huggingFace": HUB | {"tokenSecretRef": {"name": "hub"}}},
    ),
    **one("source.huggingFace.caConfigMapRef.name", "a", "b", source={"huggingFace": HUB}),
    **one(
        "source.huggingFace.caConfigMapRef.key",
        "a",
        "b",
        source={"huggingFace": HUB | {"caConfigMapRef": {"name": "ca"}}},
    ),
    **one("source.s3.uri", "s3://models/a", "s3://models/b", source={"s3": BUCKET}),
    **one("source.s3.endpoint", None, "http://store", source={"s3": BUCKET}),
    **one("source.s3.region", None, "eu-west-1", source={"s3": BUCKET}),
    **one("source.s3.credentialsSecretRef.name", "a", "b", source={"s3": BUCKET}),
    **one("source.s3.caConfigMapRef.name", "a", "b", source={"s3": BUCKET}),
    **one("source.s3.caConfigMapRef.key", "a", "b", source={"s3": BUCKET | {"caConfigMapRef": {"name": "ca"}}}),
    **one("source.http.url", "http://web/a.tar", "http://web/b.tar", source={"http": WEB}),
    **one("source.http.sha256", "2" * 64, "3" * 64, source={"http": WEB}),
    **one("source.http.caConfigMapRef.name", "a", "b", source={"http": WEB}),
    **one("source.http.caConfigMapRef.key", "a", "b", source={"http": WEB | {"caConfigMapRef": {"name": "ca"}}}),
    **one("source.pvc.claimName", "a", "b", source={"pvc": {"claimName": "a"}}),
    **one("source.pvc.path", "", "models", source={"pvc": {"claimName": "a"}}),
    **one("source.auxiliary.repo", "a/b", "a/c", source={"huggingFace": HUB, "auxiliary": [HUB]}),
    **one("source.auxiliary.revision", "1" * 40, "2" * 40, source={"huggingFace": HUB, "auxiliary": [HUB]}),
    **one("storage.claimName", "a", "b", storage={"claimName": "a"}),
    **one("storage.policy", "Retain", "Delete", storage=CLAIM),
    **one("storage.create.size", "1Gi", "2Gi", storage=CLAIM),
    **one("storage.create.storageClassName", None, "fast", storage=CLAIM),
    **one("storage.create.accessModes", ["ReadWriteMany"], ["ReadWriteOnce"], storage=CLAIM),
    **{
        path: tuple({"plugin": "deberta_gliner_linker", "image": "mine:1", "labelSets": [found]} for found in pair)  # type: ignore[misc]
        for path, pair in {
            "labelSets.name": (LABELS, LABELS | {"name": "other"}),
            "labelSets.sha256": (LABELS, LABELS | {"sha256": "3" * 64}),
            "labelSets.url": (LABELS, LABELS | {"url": "http://web/b.jsonl"}),
            **{
                f"labelSets.huggingFace.{field}": (
                    HUB_FILE,
                    HUB_FILE | {"huggingFace": HUB_FILE["huggingFace"] | changed},
                )
                for field, changed in {
                    "type": {"type": "model"},
                    "repo": {"repo": "a/c"},
                    "revision": {"revision": "2" * 40},
                    "path": {"path": "b.jsonl"},
                }.items()
            },
            "labelSets.s3.uri": (OBJECT, OBJECT | {"s3": {"uri": "s3://catalogues/b"}}),
            "labelSets.configMapRef.name": (MOUNTED, MOUNTED | {"configMapRef": {"name": "b"}}),
            "labelSets.configMapRef.key": (MOUNTED, MOUNTED | {"configMapRef": {"name": "a", "key": "b"}}),
        }.items()
    },
    **one("prepare.allowPickle", False, True),
    **one("prepare.trustRemoteCode", None, True),
    **one("prepare.parameters", {}, {"wordsSplitter": "whitespace"}, plugin="mt5_gliner", image="mine:1"),
    **one("prepare.resources.requests", {"cpu": 1}, {"cpu": 2}),
    **one("prepare.resources.limits", {"cpu": 1}, {"cpu": 2}),
    **one("prepare.env.name", "A", "B", prepare={"env": [{"name": "A", "value": "1"}]}),
    **one("prepare.env.value", "1", "2", prepare={"env": [{"name": "A", "value": "1"}]}),
    **one("prepare.serviceAccountName", None, "reader"),
    **one("prepare.nodeSelector", {}, {"disk": "ssd"}),
    **one("prepare.tolerations.key", "a", "b", prepare={"tolerations": [{"operator": "Exists"}]}),
    **one("prepare.tolerations.operator", "Equal", "Exists", prepare={"tolerations": [{"key": "a"}]}),
    **one("prepare.tolerations.value", "a", "b", prepare={"tolerations": [{"key": "a"}]}),
    **one("prepare.tolerations.effect", None, "NoSchedule", prepare={"tolerations": [{"key": "a"}]}),
    **one(
        "prepare.tolerations.tolerationSeconds", None, 5, prepare={"tolerations": [{"key": "a", "effect": "NoExecute"}]}
    ),
    **one("prepare.activeDeadlineSeconds", 60, 61),
    **one("prepare.backoffLimit", 1, 2),
    **one("parity.thresholds", {}, {"cosine": "0.9"}),
    **one("parity.timeoutSeconds", 10, 11),
    **one("parity.inputs.configMapRef.name", "a", "b"),
    **one("parity.inputs.configMapRef.key", "a", "b", parity={"inputs": {"configMapRef": {"name": "c"}}}),
    **one("serving.accelerator", "cpu", "nvidia"),
    **one("serving.acceleratorProduct", None, "NVIDIA-L4", serving=GPU),
    **one("serving.replicas", 1, 2),
    **one("serving.dtype", None, "bfloat16"),
    **one("serving.maxModelLen", None, 128),
    **one("serving.loadFormat", "auto", "safetensors"),
    **one("serving.quantization", None, "fp8", serving=GPU),
    **one("serving.tensorParallelSize", 1, 2, serving=GPU),
    **one("serving.apiServerCount", None, 2),
    **one("serving.enginesPerAccelerator", None, 2, serving={"apiServerCount": 2}),
    **one("serving.maxInFlight", None, 8),
    **one("serving.limits", {}, {"texts": 8}),
    **one("serving.media.allowedHosts", ["a.example"], ["b.example"], plugin="colqwen3", image="engine:1"),
    **one("serving.trustRemoteCode", False, True),
    **one("serving.resources.requests", {"cpu": 1}, {"cpu": 2}),
    **one("serving.resources.limits", {"cpu": 1}, {"cpu": 2}),
    **one("serving.resourceClaims.name", "a", "b", serving={"resourceClaims": [DEVICE]}),
    **one("serving.resourceClaims.resourceClaimName", "a", "b", serving={"resourceClaims": [DEVICE]}),
    **one("serving.resourceClaims.resourceClaimTemplateName", "a", "b", serving={"resourceClaims": [{"name": "gpu"}]}),
    **one("serving.resourceClaims.request", None, "a", serving={"resourceClaims": [DEVICE]}),
    **one("serving.args", [], ["--max-num-seqs=8"]),
    **one("serving.env.name", "A", "B", serving={"env": [{"name": "A", "value": "1"}]}),
    **one("serving.env.value", "1", "2", serving={"env": [{"name": "A", "value": "1"}]}),
    **one("serving.nodeSelector", {}, {"disk": "ssd"}),
    **one("serving.tolerations.key", "a", "b", serving={"tolerations": [{"operator": "Exists"}]}),
    **one("serving.tolerations.operator", "Equal", "Exists", serving={"tolerations": [{"key": "a"}]}),
    **one("serving.tolerations.value", "a", "b", serving={"tolerations": [{"key": "a"}]}),
    **one("serving.tolerations.effect", None, "NoSchedule", serving={"tolerations": [{"key": "a"}]}),
    **one(
        "serving.tolerations.tolerationSeconds", None, 5, serving={"tolerations": [{"key": "a", "effect": "NoExecute"}]}
    ),
    **affinity("podAffinity"),
    **affinity("podAntiAffinity"),
    **node_terms(
        f"serving.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms",
        lambda term: nodes({REQUIRED: {"nodeSelectorTerms": [term]}}),
    ),
    **node_terms(
        f"serving.affinity.nodeAffinity.{PREFERRED}.preference",
        lambda term: nodes({PREFERRED: [{"weight": 1, "preference": term}]}),
    ),
    f"serving.affinity.nodeAffinity.{PREFERRED}.weight": (
        nodes({PREFERRED: [{"weight": 1, "preference": NODE_TERM}]}),
        nodes({PREFERRED: [{"weight": 2, "preference": NODE_TERM}]}),
    ),
    **one("serving.topologySpreadConstraints.maxSkew", 1, 2, serving={"topologySpreadConstraints": [SPREAD]}),
    **one(
        "serving.topologySpreadConstraints.topologyKey", "zone", "rack", serving={"topologySpreadConstraints": [SPREAD]}
    ),
    **one(
        "serving.topologySpreadConstraints.whenUnsatisfiable",
        "ScheduleAnyway",
        "DoNotSchedule",
        serving={"topologySpreadConstraints": [SPREAD]},
    ),
    **one(
        "serving.topologySpreadConstraints.minDomains",
        None,
        2,
        serving={"topologySpreadConstraints": [SPREAD | {"whenUnsatisfiable": "DoNotSchedule"}]},
    ),
    **selector(
        "serving.topologySpreadConstraints.labelSelector",
        lambda found: {"serving": {"topologySpreadConstraints": [SPREAD | {"labelSelector": found}]}},
    ),
    **one("serving.priorityClassName", None, "high"),
    **one("serving.runtimeClassName", None, "nvidia"),
    **one("serving.imagePullSecrets.name", "a", "b", serving={"imagePullSecrets": [{"name": "a"}]}),
    **one("serving.podTemplate", {}, {"metadata": {"annotations": {"mesh": "off"}}}),
    **one("rollout.strategy", "RollingUpdate", "Recreate"),
    **one("rollout.maxSurge", 1, "50%"),
    **one("rollout.maxUnavailable", 0, "25%"),
    **one("rollout.minReadySeconds", 0, 9),
    **one("network.service.type", "ClusterIP", "LoadBalancer"),
    **one("network.service.port", 80, 8080),
    **one("network.service.annotations", {}, {"cloud/internal": "true"}),
    **one("network.httpRoute.parentRefs.name", "a", "b", network={"httpRoute": ROUTE}),
    **one("network.httpRoute.parentRefs.namespace", None, "edge", network={"httpRoute": ROUTE}),
    **one("network.httpRoute.parentRefs.sectionName", None, "https", network={"httpRoute": ROUTE}),
    **one("network.httpRoute.hostnames", [], ["a.example"], network={"httpRoute": ROUTE}),
    **one("network.httpRoute.pathPrefix", "/", "/minilm", network={"httpRoute": ROUTE}),
    **selector("network.networkPolicy.from.podSelector", lambda found: policy({"podSelector": found})),
    **selector("network.networkPolicy.from.namespaceSelector", lambda found: policy({"namespaceSelector": found})),
}


def leaves(schema: Json, path: str = "") -> Iterator[str]:
    """Yield the path of every field that holds a value; which parameters there are is for plugins to say."""
    for name, field in schema.get("properties", {}).items():
        where = f"{path}.{name}" if path else name
        below = field.get("items", field)
        if "properties" in below and where != "prepare.parameters":
            yield from leaves(below, where)
        else:
            yield where


def rendered(spec: Json) -> str:
    live = with_fields({})
    for key, value in spec.items():
        # exactly one of several: another source or storage takes the place of the first
        live["spec"][key] = value if key in ("source", "storage") else _joined(live["spec"].get(key, {}), value)
    return canonical_json(render.render_children(live, TRUSTING))


def test_every_field_of_the_schema_is_in_the_table() -> None:
    found = set(leaves(SCHEMA["properties"]["spec"])) - {"plugin"}
    assert found == set(ROWS) | set(ELSEWHERE)


@pytest.mark.parametrize("path", ROWS)
def test_a_field_that_is_set_changes_what_is_applied(path: str) -> None:
    first, second = ROWS[path]
    assert rendered(first) != rendered(second)


def test_a_branch_is_refused_unless_it_is_allowed_by_name() -> None:
    branch = HUB | {"revision": "main"}
    with pytest.raises(NotAccepted, match="40 hexadecimal digits"):
        rendered({"source": {"huggingFace": branch}})
    allowed = rendered({"source": {"huggingFace": branch | {"allowMutableRevision": True}}})
    assert '"--revision","main","--allow-mutable-revision"' in allowed
