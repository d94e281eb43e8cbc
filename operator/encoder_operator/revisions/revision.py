"""Identify artifacts and revisions, and build revisions.

A revision is built once, with the images and defaults of that time, and found again by the hash of the user's inputs.
An upgrade of the operator therefore never changes a pod.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from encoder_operator import naming
from encoder_operator.api.v1alpha1 import HuggingFace
from encoder_operator.manager.settings import Settings
from encoder_operator.resources import serving_pod_template
from encoder_operator.revisions.hashing import Json, canonical_json, json_digest
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import Revision


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A prepared artifact as the prep Job reported it."""

    key: str
    digest: str
    reference: str
    revision: str
    bytes: int
    parameters: Json = field(default_factory=dict)
    # checksums by name
    label_sets: Json = field(default_factory=dict)

    def pinned(self) -> Json:
        """Return the artifact as a revision pins it."""
        return {
            "key": self.key,
            "digest": self.digest,
            "reference": self.reference,
            "revision": self.revision,
            "bytes": self.bytes,
            **({"parameters": self.parameters} if self.parameters else {}),
            **({"label_sets": self.label_sets} if self.label_sets else {}),
        }


def source_identity(model: EncoderModel) -> Json:
    """Return what identifies the checkpoint. Endpoint and credentials do not, except for the endpoint of a bucket."""
    found = model.spec.source
    further = [{"repo": entry.repo, "revision": entry.revision} for entry in found.auxiliary]
    auxiliary: Json = {"auxiliary": further} if further else {}
    if found.hugging_face is not None:
        hub = found.hugging_face
        which = "branch" if is_mutable_revision(hub) else "revision"
        return {"repo": hub.repo, which: hub.revision, **auxiliary}
    if found.s3 is not None:
        # a bucket's name is unique only within its store
        return {"s3": found.s3.uri.rstrip("/"), "endpoint": found.s3.endpoint or "", **auxiliary}
    if found.http is not None:
        return {"http": found.http.sha256, **auxiliary}
    # validation ensures that one of the four sources is set
    assert found.pvc is not None
    return {"claim": found.pvc.claim_name, "path": found.pvc.path, **auxiliary}


def is_mutable_revision(hub: HuggingFace) -> bool:
    """Return whether the revision is a branch or tag, which may point to another commit later."""
    return re.fullmatch("[0-9a-f]{40}", hub.revision) is None


def artifact_key(model: EncoderModel) -> str:
    """Return the key of the artifact that this version of the operator would prepare for the model."""
    found = _preparation_inputs(model)
    # each model resolves a mutable source for itself, once per value of the retry annotation
    if _needs_lookup(model) and not _is_identified_by_name(model):
        found["resolve"] = [model.uid, model.retry]
    return json_digest(found)


def unresolved_source(model: EncoderModel) -> str:
    """Return a hash of a source that must be resolved, such as a branch, or an empty string if the spec identifies the content."""
    return json_digest(_preparation_inputs(model))[:16] if _needs_lookup(model) else ""


def _preparation_inputs(model: EncoderModel) -> Json:
    found: Json = {
        "source": source_identity(model),
        "plugin": model.plugin.name,
        "prepVersion": model.plugin.prep_version,
        "allowPickle": model.spec.prepare.allow_pickle,
    }
    if model.inputs_hash:
        found["inputs"] = model.inputs_hash
    if model.prep_trusts_remote_code:
        found["trustRemoteCode"] = True
    if model.spec.prepare.parameters:
        found["parameters"] = model.spec.prepare.parameters
    if model.label_sets:
        found["labelSets"] = model.label_sets
    return found


def _needs_lookup(model: EncoderModel) -> bool:
    """Return whether the source must be read to know its content."""
    wanted = model.spec.source
    hub = wanted.hugging_face
    return wanted.s3 is not None or wanted.pvc is not None or (hub is not None and is_mutable_revision(hub))


def _is_identified_by_name(model: EncoderModel) -> bool:
    """Return whether the source's name identifies its content. A PVC's path does, until the user requests a new look-up."""
    return model.spec.source.pvc is not None and not model.retry


def inputs_hash(model: EncoderModel, update: str = "") -> str:
    """Return the hash of everything in the spec that affects a pod.

    ControllerRevisions of version 0.1.0 include the annotation `encoders.dev/update` in this hash; pass `update` to
    find those.
    """
    serving = model.spec.serving.model_dump(mode="json", exclude={"replicas"}, exclude_defaults=True)
    found: Json = {
        "plugin": model.plugin.name,
        "source": source_identity(model),
        "allowPickle": model.spec.prepare.allow_pickle,
        "claim": model.pvc_name,
        "serving": serving,
    }
    if model.spec.image is not None:
        found["image"] = model.spec.image
    if model.inputs_hash:
        found["inputs"] = model.inputs_hash
    if model.spec.prepare.parameters:
        found["parameters"] = model.spec.prepare.parameters
    if model.label_sets:
        found["labelSets"] = model.label_sets
    if model.prep_trusts_remote_code != model.spec.serving.trust_remote_code:
        # otherwise that of serving, which is in the hash, says both
        found["prepTrustsRemoteCode"] = model.prep_trusts_remote_code
    if update:
        found["update"] = update
    return json_digest(found)[:16]


def annotated_update(update: str) -> str:
    """Return the part of a recorded update that the user's annotation has."""
    return update.partition(AUTOMATIC)[0]


def is_requested(model: EncoderModel, found: Revision) -> bool:
    """Return whether `found` was created for the current spec and annotations.

    A removed annotation requests nothing, so the revision that it led to stays valid.
    """
    return matches_spec(model, found) and not (found.unresolved_source and model.retry and found.retry != model.retry)


def matches_spec(model: EncoderModel, found: Revision) -> bool:
    """Return whether `found` was created for the current spec, with the defaults that the update annotation requests."""
    recorded = found.update if AUTOMATIC in model.update else annotated_update(found.update)
    if model.update and recorded != model.update:
        return not found.update and found.inputs_hash == inputs_hash(model, model.update)
    return found.inputs_hash == inputs_hash(model)


def build(model: EncoderModel, artifact: Artifact, *, shared: bool, settings: Settings) -> Revision:
    """Build the revision of `model` with the current images and defaults.

    Args:
        model: The desired state.
        artifact: The prepared artifact that the pods load.
        shared: Whether several nodes can mount the volume at the same time.
        settings: Current images and defaults.
    """
    template = serving_pod_template.build(model, artifact.key, artifact.digest, shared=shared, settings=settings)
    found = json_digest({"template": template, "reference": artifact.reference})[:10]
    template["metadata"]["labels"][naming.REVISION] = found
    serving = model.spec.serving
    pinned = {
        "artifact": artifact.pinned(),
        "claim": model.pvc_name,
        "plugin": model.plugin.name,
        "prepVersion": model.plugin.prep_version,
        "image": serving_pod_template.engine_image(model, settings),
        "accelerator": serving.accelerator,
        "dtype": model.dtype,
        "args": list(serving.args),
    }
    return Revision(
        hash=found,
        inputs_hash=inputs_hash(model),
        number=0,
        pvc_uid="",
        template=template,
        pinned=pinned,
        created=_EPOCH,
    )


def pinned_artifact(found: Revision) -> Artifact:
    """Return the artifact that a revision pins."""
    return Artifact(**found.pinned["artifact"])


def available_update(target: Revision, model: EncoderModel, *, shared: bool, settings: Settings) -> str | None:
    """Return what the current defaults would change about `target`, or None if nothing."""
    pinned = target.pinned
    if pinned["prepVersion"] != model.plugin.prep_version:
        return f"preparation version {model.plugin.prep_version} of plugin {model.plugin.name} (pinned: {pinned['prepVersion']})"
    current = build(model, pinned_artifact(target), shared=shared, settings=settings)
    if current.hash == target.hash:
        return None
    if current.pinned["image"] != pinned["image"]:
        return f"image {current.pinned['image']} (pinned: {pinned['image']})"
    changed = sorted(
        key for key in current.pinned if canonical_json(current.pinned[key]) != canonical_json(pinned.get(key))
    )
    return f"newer defaults ({', '.join(changed) or 'pod template'})"


_EPOCH = serving_pod_template.EPOCH
# in the recorded update, between the user's annotation and what the operator has chosen
AUTOMATIC = "+auto-"
