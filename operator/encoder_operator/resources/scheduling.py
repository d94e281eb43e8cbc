"""Where the pods of a model may run. Pods that share a ReadWriteOnce volume run on one node, and prep runs where serving may run."""

from __future__ import annotations

from encoder_operator import naming
from encoder_operator.api.v1alpha1 import Serving, Toleration
from encoder_operator.revisions.hashing import Json, json_digest
from encoder_operator.state.desired import EncoderModel
from encoder_operator.validation import checks


def common_fields(serving: Serving) -> Json:
    """Return the node selector and tolerations that apply to all pods of the model."""
    found: Json = {}
    if serving.node_selector:
        found["nodeSelector"] = dict(sorted(serving.node_selector.items()))
    if serving.tolerations:
        found["tolerations"] = _dump_tolerations(serving.tolerations)
    return found


def pvc_labels(model: EncoderModel, *, shared: bool) -> dict[str, str]:
    """Return the label by which pods of several models that share a ReadWriteOnce PVC are kept together."""
    return {} if shared or model.spec.storage.claim_name is None else {naming.CLAIM: _pvc_label(model)}


def serving(model: EncoderModel, *, shared: bool) -> Json:
    """Return the scheduling fields of the serving pods."""
    wanted = model.spec.serving
    found = common_fields(wanted) | _image_pull_secrets(model)
    selector = checks.node_selector(wanted)
    if selector:
        found["nodeSelector"] = selector
    affinity = _affinity(wanted)
    if not shared:
        near = {naming.COMPONENT: "serving"} if model.spec.storage.claim_name is None else {}
        affinity |= {"podAffinity": affinity.get("podAffinity", {}) | _same_node_affinity(model, near)}
    if affinity:
        found["affinity"] = affinity
    if wanted.topology_spread_constraints:
        found["topologySpreadConstraints"] = [
            {"labelSelector": {"matchLabels": naming.labels(model.name, "serving")}}
            | entry.model_dump(by_alias=True, exclude_defaults=True, mode="json")
            for entry in wanted.topology_spread_constraints
        ]
    if wanted.priority_class_name is not None:
        found["priorityClassName"] = wanted.priority_class_name
    if wanted.runtime_class_name is not None:
        found["runtimeClassName"] = wanted.runtime_class_name
    return found


def prep(model: EncoderModel, *, shared: bool) -> Json:
    """Return the scheduling fields of the prep pod."""
    wanted, own = model.spec.serving, model.spec.prepare
    found = common_fields(wanted) | _image_pull_secrets(model)
    if own.tolerations:
        both = found.get("tolerations", [])
        found["tolerations"] = [*both, *(entry for entry in _dump_tolerations(own.tolerations) if entry not in both)]
    selector = own.node_selector or wanted.node_selector
    if not shared:
        selector = {**own.node_selector, **checks.node_selector(wanted)}
        found["affinity"] = _serving_node_affinity(wanted) | {"podAffinity": _same_node_affinity(model, {})}
    if selector:
        found["nodeSelector"] = dict(sorted(selector.items()))
    return found


def parity(model: EncoderModel, template: Json, node: str, *, shared: bool) -> Json:
    """Return the scheduling fields of a parity pod for a pod of `template` on `node`."""
    found = common_fields(model.spec.serving) | _image_pull_secrets(model)
    if not shared:
        # a ReadWriteOnce volume is attached to one node: run on the node of the serving pod, with the fields that let
        # that pod run there
        found = {
            key: template[key] for key in ("nodeSelector", "tolerations") if template.get(key)
        } | _image_pull_secrets(model)
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        found["affinity"] = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        }
    return found


def _same_node_affinity(model: EncoderModel, further: dict[str, str]) -> Json:
    """Return the affinity that keeps pods with the same volume together. The first pod may run anywhere because it matches itself."""
    by_claim = model.spec.storage.claim_name is not None
    selector = {naming.CLAIM: _pvc_label(model)} if by_claim else {naming.MODEL: model.name, **further}
    term = {"labelSelector": {"matchLabels": selector}, "topologyKey": "kubernetes.io/hostname"}
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def _serving_node_affinity(wanted: Serving) -> Json:
    """Return the node affinity of the serving pods, because the first pod determines where the volume is created."""
    found = {key: value for key, value in _affinity(wanted).items() if key == "nodeAffinity"}
    if wanted.accelerator == "cpu" or found:
        return found
    has_gpu = {"matchExpressions": [{"key": naming.GPU_PRODUCT_LABEL, "operator": "Exists"}]}
    preferred = {"weight": 100, "preference": has_gpu}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}}


def _affinity(wanted: Serving) -> Json:
    if wanted.affinity is None:
        return {}
    dumped: Json = wanted.affinity.model_dump(by_alias=True, exclude_defaults=True, mode="json")
    return dumped


def _image_pull_secrets(model: EncoderModel) -> Json:
    secrets = [{"name": entry.name} for entry in model.spec.serving.image_pull_secrets]
    return {"imagePullSecrets": secrets} if secrets else {}


def _dump_tolerations(tolerations: list[Toleration]) -> list[Json]:
    return [entry.model_dump(by_alias=True, exclude_none=True, mode="json") for entry in tolerations]


def _pvc_label(model: EncoderModel) -> str:
    # the name of a PVC may be longer than a label value
    return json_digest(model.pvc_name)[:16]
