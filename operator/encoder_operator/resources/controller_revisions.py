"""ControllerRevisions: immutable records that the edit roles of tenants cannot write. One per revision, one per verdict."""

from __future__ import annotations

import re

from encoder_operator import naming
from encoder_operator.revisions.hashing import Json, canonical_json, json_digest
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import Revision

_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def build_revision(model: EncoderModel, found: Revision) -> Json:
    """Return the ControllerRevision of a revision: its pod template and pinned inputs."""
    record = _build(model, naming.revision(model.name, found.hash), "revision", found.hash)
    record["metadata"]["labels"][naming.INPUTS] = found.inputs_hash
    known = {
        naming.CLAIM_UID: found.pvc_uid,
        naming.UPDATE: found.update,
        naming.RETRY: found.retry,
        naming.ORIGIN: found.unresolved_source,
        naming.STALLED: canonical_json(found.stalled) if found.stalled else "",
    }
    annotations = {key: value for key, value in known.items() if value}
    if annotations:
        record["metadata"]["annotations"] = annotations
    # also as labels where they are valid label values, so that removing all annotations starts no rollout
    if "message" in found.stalled:
        known |= {naming.GIVEN_UP: f"{found.stalled.get('limit', 0)}_{found.stalled.get('retry', '')}".rstrip("_")}
    record["metadata"]["labels"] |= {key: value for key, value in known.items() if _LABEL.fullmatch(value)}
    return record | {"revision": found.number, "data": {"template": found.template, "pinned": found.pinned}}


def build_verdict(model: EncoderModel, revision_hash: str, data: Json) -> Json:
    """Return the ControllerRevision of a verdict on one revision, image, accelerator product and set of thresholds."""
    parts = {key: data[key] for key in ("product", "thresholds", "retry")} | {"image": data["binding"]["imageID"]}
    which = json_digest(parts)[:6]
    name = f"{naming.revision(model.name, revision_hash)}-{which}-verdict"
    return _build(model, name, "verdict", revision_hash) | {"revision": 0, "data": data}


def _build(model: EncoderModel, name: str, component: str, revision_hash: str) -> Json:
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": name,
            "namespace": model.namespace,
            "labels": naming.labels(model.name, component, revision_hash),
            "ownerReferences": [naming.owner_reference(model.name, model.uid)],
        },
    }
