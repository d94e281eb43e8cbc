"""Scheduling constraints. The fields are those of a pod, with types, so that the API server rejects mistakes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from encoder_operator import naming
from encoder_operator.api.v1alpha1.base import ApiType, LabelKey, LabelValue, Name, Namespace, Rule, exactly_one, keyed

Weight = Annotated[int, Field(ge=1, le=100)]


class Toleration(ApiType):
    """A taint that the pods tolerate."""

    RULES = (
        Rule(
            "self.operator == 'Equal' || !has(self.value) || self.value == ''",
            "a toleration with operator Exists must not have a value",
            lambda part: part.operator == "Equal" or not part.value,
        ),
        Rule(
            "self.operator == 'Exists' || has(self.key)",
            "a toleration without a key needs operator Exists, and then matches every taint",
            lambda part: part.operator == "Exists" or part.key is not None,
        ),
        Rule(
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "a toleration with tolerationSeconds needs effect NoExecute",
            lambda part: part.toleration_seconds is None or part.effect == "NoExecute",
        ),
    )

    key: LabelKey | None = None
    """Taint key; if absent, operator must be Exists."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """How the key relates to the value."""
    value: LabelValue | None = None
    """Taint value for operator Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Taint effect; every effect by default."""
    toleration_seconds: int | None = None
    """Toleration period for NoExecute taints, in seconds."""


Tolerations = Annotated[list[Toleration], Field(max_length=32)]
NodeSelector = Annotated[dict[LabelKey, LabelValue], Field(max_length=32)]


class LabelRequirement(ApiType):
    """A requirement on a label."""

    RULES = (
        Rule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
            "In and NotIn need values, Exists and DoesNotExist must have none",
            lambda part: (part.operator in ("In", "NotIn")) == bool(part.values),
        ),
    )

    key: LabelKey
    """Label key."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """Operator."""
    values: Annotated[list[LabelValue], Field(max_length=64)] = Field(default_factory=list)
    """For In and NotIn."""


class LabelSelector(ApiType):
    """A label selector; an empty one selects everything."""

    match_labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] = Field(default_factory=dict)
    """Required labels."""
    match_expressions: Annotated[list[LabelRequirement], Field(max_length=16)] = Field(default_factory=list)
    """Further requirements."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels of an object match. As in Kubernetes, NotIn matches objects without the label."""
        plain = all(labels.get(key) == value for key, value in self.match_labels.items())
        return plain and all(
            {
                "In": labels.get(entry.key) in entry.values,
                "NotIn": labels.get(entry.key) not in entry.values,
                "Exists": entry.key in labels,
                "DoesNotExist": entry.key not in labels,
            }[entry.operator]
            for entry in self.match_expressions
        )


class NodeRequirement(ApiType):
    """A requirement on a node."""

    RULES = (
        Rule(
            "self.operator in ['Exists', 'DoesNotExist'] ? !has(self.values) || self.values.size() == 0 :"
            " has(self.values) && (self.operator in ['Gt', 'Lt'] ? self.values.size() == 1 : self.values.size() > 0)",
            "In and NotIn need values, Gt and Lt one, Exists and DoesNotExist must have none",
            lambda part: (
                not part.values
                if part.operator in ("Exists", "DoesNotExist")
                else len(part.values) == 1 or (part.operator in ("In", "NotIn") and bool(part.values))
            ),
        ),
        Rule(
            "!(self.operator in ['Gt', 'Lt']) || !has(self.values) || self.values.all(v, v.matches('^-?[0-9]+$'))",
            "the value of Gt and Lt must be an integer",
            lambda part: (
                part.operator not in ("Gt", "Lt") or all(re.fullmatch("-?[0-9]+", value) for value in part.values)
            ),
        ),
    )

    key: LabelKey
    """Label key."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """Operator."""
    # the sign of a negative number is no part of a label's value
    values: Annotated[
        list[Annotated[str, StringConstraints(pattern=rf"{naming.LABEL_VALUE}|^-[0-9]+$", max_length=63)]],
        Field(max_length=64),
    ] = Field(default_factory=list)
    """Values."""


class NodeFieldRequirement(ApiType):
    """A requirement on a field of a node."""

    key: Literal["metadata.name"]
    """The field."""
    operator: Literal["In", "NotIn"]
    """Operator."""
    values: Annotated[list[Name], Field(min_length=1, max_length=1)]
    """The name."""


class NodeTerm(ApiType):
    """Requirements, which a node must all meet."""

    match_expressions: Annotated[list[NodeRequirement], Field(max_length=16)] = Field(default_factory=list)
    """On labels."""
    match_fields: Annotated[list[NodeFieldRequirement], Field(max_length=16)] = Field(default_factory=list)
    """On fields."""


class PreferredNodes(ApiType):
    """Preferred nodes."""

    weight: Weight
    """Weight of the preference."""
    preference: NodeTerm
    """Requirements on the nodes."""


class RequiredNodes(ApiType):
    """Required nodes."""

    node_selector_terms: Annotated[list[NodeTerm], Field(min_length=1, max_length=16)]
    """Terms of which a node must match at least one."""


class NodeAffinity(ApiType):
    """Node affinity."""

    required_during_scheduling_ignored_during_execution: RequiredNodes | None = None
    """Hard requirements."""
    preferred_during_scheduling_ignored_during_execution: Annotated[list[PreferredNodes], Field(max_length=16)] = Field(
        default_factory=list
    )
    """Preferences."""


class PodTerm(ApiType):
    """Selects pods within a topology."""

    topology_key: LabelKey
    """Node label that defines the topology."""
    label_selector: LabelSelector | None = None
    """Selects the pods."""
    namespaces: Annotated[list[Namespace], Field(max_length=16)] = Field(default_factory=list)
    """Namespaces; the model's own by default."""
    namespace_selector: LabelSelector | None = None
    """Selects namespaces by label."""


class WeightedPodTerm(ApiType):
    """A weighted term."""

    weight: Weight
    """Weight of the term."""
    pod_affinity_term: PodTerm
    """The term."""


class PodAffinity(ApiType):
    """Pod affinity or anti-affinity."""

    required_during_scheduling_ignored_during_execution: Annotated[list[PodTerm], Field(max_length=16)] = Field(
        default_factory=list
    )
    """Hard requirements."""
    preferred_during_scheduling_ignored_during_execution: Annotated[list[WeightedPodTerm], Field(max_length=16)] = (
        Field(default_factory=list)
    )
    """Preferences."""


class Affinity(ApiType):
    """Affinity rules of the pods."""

    node_affinity: NodeAffinity | None = None
    """Node affinity."""
    pod_affinity: PodAffinity | None = None
    """Pod affinity."""
    pod_anti_affinity: PodAffinity | None = None
    """Pod anti-affinity. Rejected if it would separate pods that share a ReadWriteOnce volume."""


class TopologySpreadConstraint(ApiType):
    """How to spread the model's pods over a topology."""

    RULES = (
        Rule(
            "!has(self.minDomains) || self.whenUnsatisfiable == 'DoNotSchedule'",
            "minDomains needs whenUnsatisfiable DoNotSchedule",
            lambda part: part.min_domains is None or part.when_unsatisfiable == "DoNotSchedule",
        ),
    )

    max_skew: Annotated[int, Field(ge=1, le=1000)]
    """Maximum difference in the number of pods between two domains."""
    topology_key: LabelKey
    """Node label that defines the domains, for instance topology.kubernetes.io/zone."""
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    """What to do if the constraint cannot be met. DoNotSchedule is rejected for pods that share a ReadWriteOnce volume."""
    label_selector: LabelSelector | None = None
    """Selects the pods to count; the model's serving pods by default."""
    min_domains: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Minimum number of domains, for DoNotSchedule."""


class ResourceClaim(ApiType):
    """A device by dynamic resource allocation. Set exactly one of `resourceClaimName` and `resourceClaimTemplateName`."""

    RULES = (
        Rule(
            "has(self.resourceClaimName) != has(self.resourceClaimTemplateName)",
            "a resource claim must set exactly one of resourceClaimName and resourceClaimTemplateName",
            lambda part: exactly_one(part, "resource_claim_name", "resource_claim_template_name"),
        ),
    )

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
    """Name of the claim within the pod."""
    resource_claim_name: Name | None = None
    """Name of an existing ResourceClaim, which all pods of the model share."""
    resource_claim_template_name: Name | None = None
    """Name of a ResourceClaimTemplate, from which each pod gets its own claim."""
    request: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)] | None = None
    """Name of a single request of the claim; the whole claim by default."""


ResourceClaims = Annotated[list[ResourceClaim], Field(max_length=8, json_schema_extra=keyed("name"))]
