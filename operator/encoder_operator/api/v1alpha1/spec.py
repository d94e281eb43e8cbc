"""The spec of an EncoderModel."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from encoder_operator.api.v1alpha1.base import ApiType, IntOrPercent, Rule, rule, rules
from encoder_operator.api.v1alpha1.label_sets import LabelSets
from encoder_operator.api.v1alpha1.network import Network
from encoder_operator.api.v1alpha1.serving import Parity, Serving
from encoder_operator.api.v1alpha1.source import Prepare, Source, Storage


class Rollout(ApiType):
    """How new pods replace old ones. Not part of the revision."""

    RULES = (
        Rule(
            # the API server evaluates the rule on the default, {}, before it fills in the defaults of the fields
            "!has(self.strategy) || self.strategy == 'Recreate' || !(string(self.maxSurge) in ['0', '0%'] "
            "&& string(self.maxUnavailable) in ['0', '0%'])",
            "rollout.maxSurge and rollout.maxUnavailable cannot both be 0, because no pod could ever be replaced",
            lambda part: part.strategy == "Recreate" or {part.max_surge, part.max_unavailable} - {0, "0%"} != set(),
        ),
    )

    strategy: Literal["RollingUpdate", "Recreate"] = "RollingUpdate"
    """RollingUpdate removes an old pod when a new one is verified and ready, and needs room for both. Recreate removes
    the old pods first, for a cluster with a single GPU; the model is unavailable until the new pods are verified."""
    max_surge: IntOrPercent = 1
    """Maximum number of additional pods during a rolling update, as an integer or percentage. Ignored with Recreate."""
    max_unavailable: IntOrPercent = 0
    """Maximum number of unavailable pods during a rolling update, as an integer or percentage. Ignored with Recreate."""
    min_ready_seconds: Annotated[int, Field(ge=0, le=1800)] = 5
    """Seconds that a new pod must be ready before an old one is removed, so that its endpoint can propagate."""
    update_policy: Literal["Manual", "Automatic"] = "Manual"
    """What happens when the operator has newer images or defaults. Manual waits for the annotation encoders.dev/update.
    Automatic rolls them out in the administrator's update window, with the same parity check and rollback."""
    progress_deadline_seconds: Annotated[int, Field(ge=60, le=86400)] = 1800
    """Seconds after which a new revision whose scheduled pods do not start is rolled back to the last verified one.
    Time without a node, and outages, do not count."""


class Spec(ApiType):
    """Desired state of an EncoderModel."""

    RULES = (
        Rule(
            "self.serving.loadFormat != 'runai_streamer' || self.serving.accelerator == 'nvidia' || has(self.image)",
            "serving.loadFormat runai_streamer on a CPU needs spec.image with an image that contains the package runai-model-streamer",
            None,
        ),
        Rule(
            "!has(self.source.pvc) || !has(self.storage.claimName) || self.source.pvc.claimName != self.storage.claimName"
            " || (has(self.source.pvc.path) && self.source.pvc.path.matches('[^./]'))",
            "source.pvc.path must name a folder where source.pvc.claimName is storage.claimName: the root of that volume has"
            " the artifacts, too",
            lambda part: (
                part.source.pvc is None
                or part.source.pvc.claim_name != part.storage.claim_name
                or re.search("[^./]", part.source.pvc.path) is not None
            ),
        ),
    )

    plugin: Annotated[
        str,
        StringConstraints(max_length=63),
        Field(
            json_schema_extra=rules(
                rule("self == oldSelf", "plugin is immutable: create another EncoderModel to use another plugin")
            )
        ),
    ]
    """The encoder family. Immutable."""
    image: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9._:/@]*$", max_length=500)] | None = None
    """Engine image, instead of the operator's image for the plugin and accelerator. A digest is preferable to a tag."""
    source: Source
    """Source of the checkpoint."""
    label_sets: LabelSets = Field(default_factory=list)
    """Sets of labels that requests name instead of sending them, if the plugin takes them (see its page). A
    JSON list or JSON lines of labels, or of objects with `label` and `id`."""
    storage: Storage
    """Storage of the artifacts."""
    prepare: Prepare = Prepare()
    """The prep Job."""
    parity: Parity = Parity()
    """Parity checks."""
    serving: Serving
    """The serving pods."""
    rollout: Rollout = Rollout()
    """How new pods replace old ones."""
    network: Network = Network()
    """Networking."""
    suspend: bool = False
    """Remove all serving pods. The artifact and the verdicts are kept."""
    paused: bool = False
    """Stop changing the model's resources. The status is still updated."""
