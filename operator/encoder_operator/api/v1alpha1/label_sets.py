"""Label sets that requests name."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from encoder_operator.api.v1alpha1.base import Address, ApiType, Key, Name, Rule, exactly_one, keyed
from encoder_plugins.artifact import label_sets


class LabelSetKey(ApiType):
    """A key of a ConfigMap in the same namespace that contains a label set."""

    name: Name
    """Name of the ConfigMap."""
    key: Key = "labels.jsonl"
    """Key of the ConfigMap."""


class LabelSet(ApiType):
    """Labels that requests name together. Set exactly one of `configMapRef` and `url`."""

    RULES = (
        Rule(
            "has(self.configMapRef) != has(self.url)",
            "a label set must set exactly one of configMapRef and url",
            lambda part: exactly_one(part, "config_map_ref", "url"),
        ),
    )

    name: Annotated[str, StringConstraints(pattern=f"^{label_sets.NAME}$", max_length=63)]
    """What requests call the set in `label_set`."""
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    """Checksum of the content. A set is part of the artifact: a change creates a new artifact and a new revision."""
    config_map_ref: LabelSetKey | None = None
    """A ConfigMap with the set, which can have 1 MiB. It is mounted in the prep Job only."""
    url: Address | None = None
    """URL of the set. It is fetched by the prep Job with the CA certificates of the source. Not part of the artifact's identity."""


LabelSets = Annotated[list[LabelSet], Field(max_length=label_sets.MOST_SETS, json_schema_extra=keyed("name"))]
