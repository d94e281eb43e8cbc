"""Desired state of an EncoderModel: its identity and its parsed, validated spec."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from encoder_operator import naming
from encoder_operator.api.v1alpha1 import Spec
from encoder_operator.manager.settings import Settings
from encoder_operator.revisions.hashing import Json, json_digest
from encoder_operator.state.observed import PersistentVolumeClaim
from encoder_operator.status.reasons import Reason
from encoder_operator.validation import checks
from encoder_operator.validation.errors import NotAccepted
from encoder_plugins import catalog
from encoder_plugins.errors import UnknownPlugin
from encoder_plugins.plugin import Plugin


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderModel:
    """Identity and desired state of an EncoderModel."""

    name: str
    namespace: str
    uid: str
    generation: int
    retry: str
    update: str
    spec: Spec
    plugin: Plugin
    status: Json
    # name of the queue that has to admit prep Jobs; empty without one
    queue: str = ""
    # sha256 of the content of spec.parity.inputs; empty if that is not set, None if it cannot be read
    inputs_hash: str | None = ""

    @property
    def pvc_name(self) -> str:
        """Return the name of the PersistentVolumeClaim that holds the artifacts."""
        return self.spec.storage.claim_name or naming.artifacts_pvc(self.name)

    def has_shared_volume(self, pvc: PersistentVolumeClaim | None) -> bool:
        """Return whether several nodes can mount the volume at the same time; `pvc` is the existing claim, if any."""
        if pvc is not None:
            return pvc.shared
        create = self.spec.storage.create
        return create is not None and "ReadWriteMany" in create.access_modes

    @property
    def prep_trusts_remote_code(self) -> bool:
        """Return whether the original library may run Python code from the checkpoint's repository."""
        own = self.spec.prepare.trust_remote_code
        return self.spec.serving.trust_remote_code if own is None else own

    @property
    def label_sets(self) -> dict[str, str]:
        """Return the checksum of each label set by name, which identifies its content."""
        return {entry.name: entry.sha256 for entry in self.spec.label_sets}

    @property
    def dtype(self) -> str:
        """Return the dtype to serve the model in."""
        return self.spec.serving.dtype or self.plugin.dtype(self.spec.serving.accelerator)

    @property
    def thresholds(self) -> str:
        """Return a hash that identifies the thresholds."""
        return json_digest(self.spec.parity.thresholds)[:10]


def parse_model(live: Json, settings: Settings, inputs: str | None = "") -> EncoderModel:
    """Parse and validate an EncoderModel; `inputs` is the hash of the user's parity inputs.

    Raises:
        NotAccepted: The user must change the spec first.
    """
    meta = live["metadata"]
    try:
        spec = Spec.model_validate(live.get("spec", {}))
    except ValidationError as error:
        raise NotAccepted(Reason.INVALID_SPEC, _validation_message(error)) from None
    try:
        plugin = catalog.get(spec.plugin)
    except UnknownPlugin as error:
        raise NotAccepted(Reason.UNKNOWN_PLUGIN, f"spec.plugin: {error}") from None
    checks.check_spec(spec, plugin, settings)
    create = spec.storage.create
    if create is not None and "ReadWriteMany" not in create.access_modes:
        checks.check_single_node(spec, meta["name"], meta["namespace"])
    annotations = meta.get("annotations", {})
    return EncoderModel(
        name=meta["name"],
        namespace=meta["namespace"],
        uid=meta["uid"],
        generation=meta.get("generation", 0),
        retry=annotations.get(naming.RETRY, ""),
        update=annotations.get(naming.UPDATE, ""),
        spec=spec,
        plugin=plugin,
        status=live.get("status", {}),
        queue=meta.get("labels", {}).get(naming.QUEUE, ""),
        inputs_hash=inputs,
    )


def _validation_message(error: ValidationError) -> str:
    found = [f"spec.{'.'.join(str(part) for part in entry['loc'])}: {entry['msg']}" for entry in error.errors()[:4]]
    more = f" (and {error.error_count() - len(found)} more)" if error.error_count() > len(found) else ""
    return "; ".join(found) + more
