"""What a person asks for, as a whole."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from encoder_operator.api.v1alpha1.base import ApiType, IntOrPercent, Rule, rule, rules
from encoder_operator.api.v1alpha1.network import Network
from encoder_operator.api.v1alpha1.serving import Parity, Serving
from encoder_operator.api.v1alpha1.source import Prepare, Source, Storage


class Rollout(ApiType):
    """How new pods take the place of old ones. Not part of the revision."""

    RULES = (
        Rule(
            # the API server tries the rule on the default, {}, before it fills in the defaults below
            "!has(self.strategy) || self.strategy == 'Recreate' || !(string(self.maxSurge) in ['0', '0%'] "
            "&& string(self.maxUnavailable) in ['0', '0%'])",
            "rollout.maxSurge and rollout.maxUnavailable can't both be 0: no pod could ever be replaced",
            lambda part: part.strategy == "Recreate" or {part.max_surge, part.max_unavailable} - {0, "0%"} != set(),
        ),
    )

    strategy: Literal["RollingUpdate", "Recreate"] = "RollingUpdate"
    """RollingUpdate starts a new pod, and takes an old one away once the new one is verified and ready: nobody notices, but it needs room
    for both. Recreate takes the old ones away first: for a cluster with a single GPU; nothing answers until the new ones are verified."""
    max_surge: IntOrPercent = 1
    """Pods above the wanted number during a rolling update, as a number or in percent. Of no effect with Recreate."""
    max_unavailable: IntOrPercent = 0
    """Pods that may be missing during a rolling update, as a number or in percent. Of no effect with Recreate."""
    min_ready_seconds: Annotated[int, Field(ge=0, le=1800)] = 5
    """A new pod must have been ready for so long before an old one goes: by then it is known everywhere as an endpoint."""
    progress_deadline_seconds: Annotated[int, Field(ge=60, le=86400)] = 1800
    """A new revision that runs and could be verified, and has not been after so many seconds, is given up, and the last verified one comes
    back. Waiting for a node, and outages, do not count."""


class Spec(ApiType):
    """What a person asks for."""

    RULES = (
        Rule(
            "self.serving.loadFormat != 'runai_streamer' || self.serving.accelerator == 'nvidia' || has(self.image)",
            "serving.loadFormat runai_streamer on a CPU needs an image that holds the package runai-model-streamer",
            None,
        ),
    )

    plugin: Annotated[
        str,
        StringConstraints(max_length=63),
        Field(
            json_schema_extra=rules(
                rule("self == oldSelf", "plugin can't be changed: make another EncoderModel for another plugin")
            )
        ),
    ]
    """The encoder family. Immutable."""
    image: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9._:/@]*$", max_length=500)] | None = None
    """Engine image, instead of the operator's own for plugin and accelerator; better with a digest than with a tag."""
    source: Source
    """Where the checkpoint comes from."""
    storage: Storage
    """Where artifacts are kept."""
    prepare: Prepare = Prepare()
    """The preparation Job."""
    parity: Parity = Parity()
    """The comparison with the original library."""
    serving: Serving
    """The pods that answer."""
    rollout: Rollout = Rollout()
    """How new pods take the place of old ones."""
    network: Network = Network()
    """How requests reach the pods."""
    suspend: bool = False
    """Take all pods away; the artifact and what was proved are kept."""
    paused: bool = False
    """The operator changes nothing of this model, and only reports, until this is false again."""
