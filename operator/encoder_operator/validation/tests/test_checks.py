"""What the schema lets through and the operator refuses: by field, with the reason, before anything is applied."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from encoder_operator import naming
from encoder_operator.state import observed
from encoder_operator.status.reasons import Reason
from encoder_operator.tests.harness import SETTINGS, parsed_model
from encoder_operator.validation import checks
from encoder_operator.validation.errors import NotAccepted
from encoder_plugins import catalog

ONE_NODE: dict[str, Any] = {"spec.storage": {"create": {"size": "1Gi"}}}
OWN = {"labelSelector": {"matchLabels": {"encoders.dev/model": "minilm"}}, "topologyKey": "kubernetes.io/hostname"}
OTHER = {"labelSelector": {"matchLabels": {"app": "other"}}, "topologyKey": "kubernetes.io/hostname"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
GPU: dict[str, Any] = {"spec.serving.accelerator": "nvidia"}
PRODUCT = "nvidia.com/gpu.product"


def gpus(limit: int | str, size: int = 1) -> dict[str, Any]:
    limits = {"limits": {"nvidia.com/gpu": limit}}
    return GPU | {"spec.serving.resources": limits, "spec.serving.tensorParallelSize": size}


TERM = {"topologyKey": "kubernetes.io/hostname"}


def preferred(**term: Any) -> dict[str, Any]:
    return {"spec.serving.affinity": {"podAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": TERM | term}]}}}


def required_nodes(kind: str, **requirement: Any) -> dict[str, Any]:
    return {"spec.serving.affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{kind: [requirement]}]}}}}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"spec.serving.nodeSelector": {"disk type": "ssd"}}, "spec.serving.nodeSelector.disk type"),
        ({"spec.serving.nodeSelector": {"Example.com/disk": "ssd"}}, "spec.serving.nodeSelector.Example.com/disk"),
        ({"spec.serving.nodeSelector": {"d" * 64: "ssd"}}, f"spec.serving.nodeSelector.{'d' * 64}"),
        ({"spec.serving.tolerations": [{"key": "a b", "operator": "Exists"}]}, "spec.serving.tolerations.0.key"),
        ({"spec.serving.tolerations": [{"key": "a", "value": "b c"}]}, "spec.serving.tolerations.0.value"),
        (preferred(topologyKey="a b"), "podAffinityTerm.topologyKey"),
        (preferred(namespaces=["a.b"]), "podAffinityTerm.namespaces.0"),
        (preferred(labelSelector={"matchLabels": {"a/b/c": "d"}}), "labelSelector.matchLabels.a/b/c"),
        (
            preferred(labelSelector={"matchExpressions": [{"key": "a b", "operator": "Exists"}]}),
            "labelSelector.matchExpressions.0.key",
        ),
        (required_nodes("matchExpressions", key="disk", operator="In", values=["a b"]), "matchExpressions.0.values.0"),
        (required_nodes("matchExpressions", key="cores", operator="Gt", values=["many"]), "matchExpressions.0"),
        (required_nodes("matchFields", key="metadata.uid", operator="In", values=["a"]), "matchFields.0.key"),
        (required_nodes("matchFields", key="metadata.name", operator="In", values=["a", "b"]), "matchFields.0.values"),
        ({"spec.serving.priorityClassName": "a..b"}, "spec.serving.priorityClassName"),
        ({"spec.serving.runtimeClassName": "a.-b"}, "spec.serving.runtimeClassName"),
        ({"spec.serving.resources": {"limits": {"nvidia.com/a b": 1}}}, "resources.limits.nvidia.com/a b"),
        ({"spec.prepare": {"serviceAccountName": "a..b"}}, "spec.prepare.serviceAccountName"),
        ({"spec.parity": {"inputs": {"configMapRef": {"name": "a", "key": ".."}}}}, "inputs.configMapRef.key"),
        ({"spec.parity": {"inputs": {"configMapRef": {"name": "a", "key": "..a"}}}}, "inputs.configMapRef.key"),
        ({"spec.network": {"service": {"annotations": {"a b": "c"}}}}, "spec.network.service.annotations.a b"),
        (
            {"spec.network": {"httpRoute": {"parentRefs": [{"name": "a", "namespace": "a.b"}]}}},
            "httpRoute.parentRefs.0.namespace",
        ),
        (
            {"spec.network": {"httpRoute": {"parentRefs": [{"name": "a", "sectionName": "A b"}]}}},
            "httpRoute.parentRefs.0.sectionName",
        ),
        ({"spec.network": {"httpRoute": {"parentRefs": [{"name": "a"}], "pathPrefix": "/a//b"}}}, "httpRoute"),
        ({"spec.network": {"httpRoute": {"parentRefs": [{"name": "a"}], "pathPrefix": "/a/.."}}}, "httpRoute"),
        ({"spec.network": {"httpRoute": {"parentRefs": [{"name": "a"}], "pathPrefix": "/ä"}}}, "httpRoute.pathPrefix"),
        (
            {"spec.network": {"networkPolicy": {"from": [{"podSelector": {"matchLabels": {"a b": "c"}}}]}}},
            "from.0.podSelector.matchLabels.a b",
        ),
        # its own artifacts would be part of the checkpoint
        ({"spec.source": {"pvc": {"claimName": "c"}}, "spec.storage": {"claimName": "c"}}, "source.pvc.path"),
        ({"spec.source": {"pvc": {"claimName": "c", "path": "./"}}, "spec.storage": {"claimName": "c"}}, "source.pvc"),
    ],
)
def test_what_the_api_server_refuses_in_a_child_is_refused_by_field_before_the_preparation(
    changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(NotAccepted) as refused:
        parsed_model(changes)
    assert refused.value.reason is Reason.INVALID_SPEC
    assert field in refused.value.message


@pytest.mark.parametrize(
    "changes",
    [
        {"spec.serving.nodeSelector": {"a-1.example.com/Disk_type.1": "", f"{'p' * 63}.x/{'d' * 63}": "ssd"}},
        {"spec.serving.tolerations": [{"operator": "Exists"}, {"key": "a", "operator": "Exists", "value": ""}]},
        required_nodes("matchExpressions", key="cores", operator="Gt", values=["-1"]),
        required_nodes("matchFields", key="metadata.name", operator="In", values=["node-1.example"]),
        {"spec.parity": {"inputs": {"configMapRef": {"name": "a.b-c", "key": ".a..b"}}}},
        {"spec.serving.resources": {"requests": {"example.com/fpga": 0}, "limits": {"example.com/nic": "2e0"}}},
        {"spec.serving.accelerator": "nvidia", "spec.serving.resources": {"requests": {"nvidia.com/gpu": 1}}},
        {"spec.network": {"service": {"annotations": {"Example.com/a": "any text"}}}},
        {"spec.source": {"pvc": {"claimName": "c", "path": "models/m"}}, "spec.storage": {"claimName": "c"}},
        {"spec.source": {"pvc": {"claimName": "c"}}, "spec.storage": {"claimName": "d"}},
        {"spec.network": {"httpRoute": {"parentRefs": [{"name": "a"}], "pathPrefix": "/a/.b/%20"}}},
    ],
)
def test_what_the_api_server_takes_is_accepted(changes: dict[str, Any]) -> None:
    assert parsed_model(changes).spec is not None


@pytest.mark.parametrize(
    ("changes", "reason", "said"),
    [
        ({"spec.serving.loadFormat": "tensorizer"}, Reason.LOAD_FORMAT_UNSUPPORTED, "only safetensors"),
        (
            {"spec.serving.loadFormat": "tensorizer", "spec.image": "mine:1"},
            Reason.LOAD_FORMAT_UNSUPPORTED,
            "only safetensors",
        ),
        ({"spec.serving.loadFormat": "fastsafetensors"}, Reason.LOAD_FORMAT_UNSUPPORTED, "needs accelerator nvidia"),
        ({"spec.serving.loadFormat": "runai_streamer"}, Reason.LOAD_FORMAT_UNSUPPORTED, "spec.image"),
        ({"spec.image": "https://x/engine:1"}, Reason.INVALID_SPEC, "spec.image: https://x/engine:1"),
        (
            {"spec.serving.limits": {"texts": 8, "text": 8}},
            Reason.INVALID_SPEC,
            "spec.serving.limits.text: plugin sentence_transformer has no such limit; it has body_bytes,",
        ),
        (
            {"spec.serving.media": {"allowedHosts": ["images.example.com"]}},
            Reason.INVALID_SPEC,
            "spec.serving.media: plugin sentence_transformer takes no images",
        ),
        (
            {"spec.serving.media": {"allowedHosts": ["127.0.0.1"]}},
            Reason.INVALID_SPEC,
            "serving.media.allowedHosts",
        ),
        (
            {"spec.serving.limits": {"in_flight": 8}, "spec.serving.maxInFlight": 8},
            Reason.INVALID_SPEC,
            "serving.maxInFlight and serving.limits.in_flight set the same limit",
        ),
        ({"spec.serving.limits": {"texts": 0}}, Reason.INVALID_SPEC, "spec.serving.limits.texts"),
        (
            {"spec.serving.trustRemoteCode": True},
            Reason.REMOTE_CODE_DENIED,
            "spec.serving.trustRemoteCode: this operator",
        ),
        (
            {"spec.prepare.trustRemoteCode": True},
            Reason.REMOTE_CODE_DENIED,
            "spec.prepare.trustRemoteCode: this operator",
        ),
        (
            {"spec.prepare": {"parameters": {"wordsSplitter": "whitespace"}}},
            Reason.INVALID_SPEC,
            "spec.prepare.parameters.wordsSplitter: plugin sentence_transformer has no such parameter; it has none",
        ),
        (
            {"spec.plugin": "mt5_gliner", "spec.prepare": {"parameters": {"wordsSplitter": "spacy"}}},
            Reason.INVALID_SPEC,
            "spec.prepare.parameters.wordsSplitter: is 'spacy'; supported: whitespace, stanza",
        ),
        (
            {"spec.plugin": "mt5_gliner", "spec.prepare": {"parameters": {"wordsSplitter": ["whitespace"]}}},
            Reason.INVALID_SPEC,
            "spec.prepare.parameters.wordsSplitter: is a list; expected one value",
        ),
        (
            {"spec.plugin": "mt5_gliner", "spec.prepare": {"parameters": {"languages": ["en", "xx"]}}},
            Reason.INVALID_SPEC,
            "spec.prepare.parameters.languages: is 'xx'; supported: af, ar, bg,",
        ),
        (
            {"spec.serving.resources": {"limits": {"mem": "4Gi"}}},
            Reason.INVALID_SPEC,
            "spec.serving.resources.limits.mem: containers have no such resource; they have cpu, memory,",
        ),
        (
            {"spec.serving.resources": {"requests": {"memory": "4Gi"}, "limits": {"cpu": 1, "memory": "4000Mi"}}},
            Reason.INVALID_SPEC,
            "spec.serving.resources.requests.memory: 4Gi is more than the limit, which is 4000Mi",
        ),
        (
            {"spec.serving.resources": {"requests": {"example.com/fpga": 1}}},
            Reason.INVALID_SPEC,
            "spec.serving.resources.requests.example.com/fpga: containers cannot request more or less of example.com/fpga than"
            " their limit, which is not set: set the limit only",
        ),
        (
            {"spec.serving.resources": {"limits": {"nvidia.com/gpu": "500m"}}},
            Reason.INVALID_SPEC,
            "spec.serving.resources.limits.nvidia.com/gpu: 500m is not a whole number",
        ),
        (
            {"spec.prepare": {"resources": {"requests": {"hugepages-2Mi": "2Mi"}, "limits": {"hugepages-2Mi": "4Mi"}}}},
            Reason.INVALID_SPEC,
            "spec.prepare.resources.requests.hugepages-2Mi: containers cannot request more or less of hugepages-2Mi than",
        ),
        (
            {"spec.serving.accelerator": "nvidia", "spec.serving.resources": {"requests": {"nvidia.com/gpu": 2}}},
            Reason.INVALID_SPEC,
            "spec.serving.resources.requests.nvidia.com/gpu: containers cannot request more or less of nvidia.com/gpu than"
            " their limit, which is 1: set the limit only",
        ),
        (
            {"spec.prepare": {"resources": {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}}},
            Reason.INVALID_SPEC,
            "spec.prepare.resources.requests.cpu: 2 is more than the limit, which is 1500m",
        ),
        (
            {"spec.parity": {"thresholds": {"cosine": "0.9", "noise_ratio": "2"}}},
            Reason.INVALID_SPEC,
            "spec.parity.thresholds: float32 has no metric noise_ratio; there is: cosine, max_abs_error",
        ),
        (
            GPU | {"spec.serving.quantization": "fp8", "spec.parity": {"thresholds": {"cosin": "0.9"}}},
            Reason.INVALID_SPEC,
            "spec.parity.thresholds: fp8 has no metric cosin; there is: cosine, max_abs_error, noise_ratio",
        ),
        (
            {"spec.parity": {"thresholds": {"cosine": "1e999"}}},
            Reason.INVALID_SPEC,
            "spec.parity.thresholds: a threshold must be a finite number",
        ),
        (
            {"spec.labelSets": [{"name": "a", "sha256": "0" * 64, "url": "http://web/a.jsonl"}]},
            Reason.INVALID_SPEC,
            "spec.labelSets: plugin sentence_transformer takes no label sets",
        ),
        (
            {"spec.labelSets": [{"name": "a", "sha256": "0" * 64}]},
            Reason.INVALID_SPEC,
            "a label set must set exactly one of configMapRef, url, huggingFace and s3",
        ),
        ({"spec.serving.podTemplate": {"spec": {"hostPID": True}}}, Reason.POD_TEMPLATE_DENIED, "spec.hostPID"),
        (
            {"spec.serving.podTemplate": {"spec": {"terminationGracePeriodSeconds": 89}}},
            Reason.POD_TEMPLATE_DENIED,
            "spec.serving.podTemplate: spec.terminationGracePeriodSeconds is not allowed",
        ),
        ({"spec.serving.env": [{"name": "VLLM_API_KEY"}]}, Reason.ENVIRONMENT_DENIED, "spec.serving.env: VLLM_API_KEY"),
        (
            {"spec.prepare": {"env": [{"name": "LD_PRELOAD"}]}},
            Reason.ENVIRONMENT_DENIED,
            "spec.prepare.env: LD_PRELOAD",
        ),
        ({"spec.serving.args": ["-tp", "2"]}, Reason.ARGUMENT_DENIED, "use spec.serving.tensorParallelSize"),
        ({"spec.serving.args": ["--quantization=fp8"]}, Reason.ARGUMENT_DENIED, "use spec.serving.quantization"),
        (gpus(2, 4), Reason.INVALID_SPEC, "nvidia.com/gpu must equal tensorParallelSize"),
        (gpus("4", 2), Reason.INVALID_SPEC, "remove the limit"),
        (gpus(0), Reason.INVALID_SPEC, "nvidia.com/gpu must equal tensorParallelSize"),
        (
            gpus(1) | {"spec.serving.resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]},
            Reason.INVALID_SPEC,
            "both request GPUs",
        ),
        (
            GPU
            | {"spec.serving.acceleratorProduct": "NVIDIA-L4", "spec.serving.nodeSelector": {PRODUCT: "NVIDIA-H200"}},
            Reason.INVALID_SPEC,
            "nodeSelector sets another nvidia.com/gpu.product",
        ),
        (
            ONE_NODE | {"spec.serving.affinity": {"podAntiAffinity": {REQUIRED: [OWN]}}},
            Reason.ONE_NODE_ONLY,
            "podAntiAffinity requires",
        ),
        (
            ONE_NODE | {"spec.serving.affinity": {"podAffinity": {REQUIRED: [OTHER]}}},
            Reason.ONE_NODE_ONLY,
            "podAffinity must not have required terms",
        ),
        # its own namespace by its name, and every namespace
        (
            ONE_NODE | {"spec.serving.affinity": {"podAntiAffinity": {REQUIRED: [OWN | {"namespaces": ["demo"]}]}}},
            Reason.ONE_NODE_ONLY,
            "to be separated by kubernetes.io/hostname, but the volume is ReadWriteOnce",
        ),
        (
            ONE_NODE | {"spec.serving.affinity": {"podAntiAffinity": {REQUIRED: [OWN | {"namespaceSelector": {}}]}}},
            Reason.ONE_NODE_ONLY,
            "podAntiAffinity requires",
        ),
        (ONE_NODE | {"spec.serving.topologySpreadConstraints": [SPREAD]}, Reason.ONE_NODE_ONLY, "spread by zone"),
        (
            ONE_NODE | {"spec.serving.topologySpreadConstraints": [SPREAD | {"labelSelector": OWN["labelSelector"]}]},
            Reason.ONE_NODE_ONLY,
            "spread by zone",
        ),
        (
            ONE_NODE
            | {"spec.serving.nodeSelector": {"disk": "ssd"}, "spec.prepare": {"nodeSelector": {"disk": "hdd"}}},
            Reason.ONE_NODE_ONLY,
            "disk: hdd",
        ),
        (
            ONE_NODE
            | GPU
            | {
                "spec.serving.acceleratorProduct": "NVIDIA-L4",
                "spec.prepare": {"nodeSelector": {PRODUCT: "NVIDIA-H200"}},
            },
            Reason.ONE_NODE_ONLY,
            "spec.prepare.nodeSelector sets nvidia.com/gpu.product: NVIDIA-H200 and spec.serving sets NVIDIA-L4, but",
        ),
    ],
)
def test_what_can_not_work_is_refused_with_field_and_reason(changes: dict[str, Any], reason: Reason, said: str) -> None:
    with pytest.raises(NotAccepted, match="spec") as refused:
        parsed_model(changes)
    assert refused.value.reason is reason
    assert said in refused.value.message


@pytest.mark.parametrize(
    "changes",
    [
        {"spec.serving.limits": {"texts": 8}},
        {
            "spec.serving.resources": {
                "requests": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": 1, "hugepages-2Mi": "4Mi"},
                "limits": {"cpu": 1, "memory": "1024Mi", "hugepages-2Mi": "4Mi", "example.com/device": 1},
            }
        },
        GPU | {"spec.parity": {"thresholds": {"noise_ratio": "2"}}},
        # ignored
        {"spec.parity": {"mode": "Disabled", "thresholds": {"noise_ratio": "2"}}},
        {"spec.serving.args": ["--seed=1"], "spec.serving.env": [{"name": "A", "value": "b"}]},
        {"spec.serving.podTemplate": {"spec": {"terminationGracePeriodSeconds": 90}}},
        {"spec.serving.loadFormat": "safetensors"},
        GPU | {"spec.serving.loadFormat": "fastsafetensors"},
        {"spec.serving.loadFormat": "runai_streamer", "spec.image": "mine:1"},
        GPU | {"spec.serving.loadFormat": "runai_streamer"},
        gpus(2, 2),
        # always could, and wastes one
        gpus(2),
        GPU | {"spec.serving.acceleratorProduct": "NVIDIA-L4", "spec.serving.nodeSelector": {PRODUCT: "NVIDIA-L4"}},
        {"spec.serving.affinity": {"podAntiAffinity": {REQUIRED: [OWN]}}},
        ONE_NODE | {"spec.serving.affinity": {"podAntiAffinity": {REQUIRED: [OTHER]}}},
        ONE_NODE | {"spec.serving.affinity": {"podAntiAffinity": {REQUIRED: [OWN | {"namespaces": ["elsewhere"]}]}}},
        ONE_NODE | {"spec.serving.affinity": {"podAntiAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": OWN}]}}},
        ONE_NODE
        | {
            "spec.serving.affinity": {
                "podAntiAffinity": {REQUIRED: [OWN | {"namespaceSelector": {"matchLabels": {"team": "search"}}}]}
            }
        },
        # a term without a selector matches no pod
        ONE_NODE | {"spec.serving.affinity": {"podAntiAffinity": {REQUIRED: [{"topologyKey": "zone"}]}}},
        ONE_NODE | {"spec.serving.affinity": {"podAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": OTHER}]}}},
        ONE_NODE | {"spec.serving.topologySpreadConstraints": [SPREAD | {"whenUnsatisfiable": "ScheduleAnyway"}]},
        ONE_NODE | {"spec.serving.topologySpreadConstraints": [SPREAD | {"labelSelector": OTHER["labelSelector"]}]},
        {"spec.serving.topologySpreadConstraints": [SPREAD]},
        ONE_NODE | {"spec.serving.nodeSelector": {"disk": "ssd"}, "spec.prepare": {"nodeSelector": {"zone": "a"}}},
        ONE_NODE | {"spec.prepare": {"nodeSelector": {PRODUCT: "NVIDIA-L4"}}},
    ],
)
def test_what_can_work_is_accepted(changes: dict[str, Any]) -> None:
    assert parsed_model(changes).name == "minilm"


@pytest.mark.parametrize(
    ("entry", "refused"),
    [
        ({"operator": "In", "values": ["serving"]}, True),
        ({"operator": "In", "values": ["prep"]}, False),
        ({"operator": "NotIn", "values": ["prep"]}, True),
        ({"operator": "NotIn", "values": ["serving"]}, False),
        ({"operator": "Exists"}, True),
        ({"operator": "DoesNotExist"}, False),
    ],
)
def test_expressions_are_read_as_the_scheduler_reads_them(entry: dict[str, Any], refused: bool) -> None:
    selector = {"matchExpressions": [{"key": "encoders.dev/component", **entry}]}
    term = {"labelSelector": selector, "topologyKey": "zone"}
    changes = {"spec.serving.affinity": {"podAntiAffinity": {REQUIRED: [term]}}}
    found = parsed_model(changes)
    if refused:
        with pytest.raises(NotAccepted):
            checks.check_single_node(found.spec, found.name, found.namespace)
    else:
        checks.check_single_node(found.spec, found.name, found.namespace)


def a_claim(asked: str, *volume: str) -> observed.PersistentVolumeClaim:
    """Return a claim that asks for one access mode, on a volume that has these."""
    return observed.parse_pvc(
        {
            "metadata": {"name": "artifacts", "uid": "c"},
            "spec": {"accessModes": [asked]},
            "status": {"phase": "Bound", "accessModes": list(volume)} if volume else {},
        }
    )


@pytest.mark.parametrize(
    ("asked", "volume", "shared"),
    [
        ("ReadWriteOnce", (), False),
        ("ReadWriteOnce", ("ReadWriteOnce",), False),
        # several nodes may read it while nobody writes, which preparation does
        ("ReadWriteOnce", ("ReadWriteOnce", "ReadOnlyMany"), False),
        ("ReadWriteOnce", ("ReadWriteOnce", "ReadWriteMany"), True),
        ("ReadWriteMany", (), True),
        ("ReadOnlyMany", ("ReadOnlyMany",), True),
        ("ReadWriteOncePod", ("ReadWriteOncePod",), False),
    ],
)
def test_a_volume_is_shared_where_several_nodes_may_write_it(asked: str, volume: tuple[str, ...], shared: bool) -> None:
    assert a_claim(asked, *volume).shared is shared


@pytest.mark.parametrize("volume", [(), ("ReadWriteOncePod",)])
def test_a_single_pod_pvc_is_rejected_by_name(volume: tuple[str, ...]) -> None:
    found = parsed_model()
    with pytest.raises(NotAccepted, match="PersistentVolumeClaim artifacts is ReadWriteOncePod") as refused:
        checks.check_volume(found.spec, found.name, found.namespace, a_claim("ReadWriteOncePod", *volume))
    assert refused.value.reason is Reason.ONE_POD_ONLY
    checks.check_volume(found.spec, found.name, found.namespace, a_claim("ReadWriteOnce"))


def test_labels_of_the_overlay_count_as_the_models_own() -> None:
    term = {"labelSelector": {"matchLabels": {"team": "search"}}, "topologyKey": "zone"}
    template = {"metadata": {"labels": {"team": "search"}}}
    with pytest.raises(NotAccepted, match="podAntiAffinity"):
        parsed_model(
            ONE_NODE
            | {"spec.serving.affinity": {"podAntiAffinity": {REQUIRED: [term]}}, "spec.serving.podTemplate": template}
        )


def test_with_the_operators_permission_code_of_the_repository_is_accepted() -> None:
    permitting = SETTINGS.model_copy(update={"allow_trust_remote_code": True})
    assert parsed_model({"spec.serving.trustRemoteCode": True}, permitting).spec.serving.trust_remote_code


def test_an_image_of_ones_own_needs_none_of_the_operators() -> None:
    without = SETTINGS.model_copy(update={"images": SETTINGS.images.model_copy(update={"engine": {}})})
    with pytest.raises(NotAccepted, match=r"engine\.cpu"):
        parsed_model(None, without)
    assert parsed_model({"spec.image": "mine:1"}, without).spec.image == "mine:1"


def test_what_the_administrator_does_not_allow_is_not_accepted() -> None:
    limited = SETTINGS.model_copy(update={"allow_custom_images": False})
    found = parsed_model({"spec.image": "mine:1"}).spec
    with pytest.raises(NotAccepted, match="allowCustomImages") as refused:
        checks.check_spec(found, catalog.get("sentence_transformer"), limited)
    assert refused.value.reason is Reason.NOT_PERMITTED


def test_every_image_that_is_missing_is_named() -> None:
    without = SETTINGS.images.model_copy(update={"engine": {}, "prep": {}, "operator": ""})
    with pytest.raises(NotAccepted) as refused:
        parsed_model(None, SETTINGS.model_copy(update={"images": without}))
    assert refused.value.reason is Reason.NO_IMAGE
    names = "engine.cpu.sentence_transformer, prep.sentence_transformer, operator"
    assert refused.value.message == f"no image is configured for {names}: set it in the chart's values"


def test_an_accelerator_without_a_default_dtype_needs_a_dtype() -> None:
    plugin = replace(catalog.get("sentence_transformer"), dtypes=(("nvidia", "bfloat16"),))
    with pytest.raises(NotAccepted, match="no default dtype for cpu; it supports nvidia") as refused:
        checks.check_spec(parsed_model().spec, plugin, SETTINGS)
    assert refused.value.reason is Reason.UNSUPPORTED_ACCELERATOR
    checks.check_spec(parsed_model({"spec.serving.dtype": "float32"}).spec, plugin, SETTINGS)
    checks.check_spec(parsed_model(GPU).spec, plugin, SETTINGS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("m" * (naming.MAX_MODEL_NAME + 1), naming.NAME_TOO_LONG),
        ("Minilm", naming.INVALID_NAME),
        ("m.v2", naming.INVALID_NAME),
        ("minilm-", naming.INVALID_NAME),
    ],
)
def test_a_name_that_children_cannot_have_is_rejected(name: str, message: str) -> None:
    with pytest.raises(NotAccepted) as refused:
        checks.check_name(name)
    assert (refused.value.reason, refused.value.message) == (Reason.INVALID_SPEC, message)
    checks.check_name("m" * naming.MAX_MODEL_NAME)


def test_pods_that_run_code_of_the_repository_have_a_label() -> None:
    permitting = SETTINGS.model_copy(update={"allow_trust_remote_code": True})
    trusted = parsed_model({"spec.serving.trustRemoteCode": True}, permitting).spec
    assert checks.serving_labels(trusted, "minilm")[naming.TRUST_REMOTE_CODE] == "true"
    assert naming.TRUST_REMOTE_CODE not in checks.serving_labels(parsed_model().spec, "minilm")
