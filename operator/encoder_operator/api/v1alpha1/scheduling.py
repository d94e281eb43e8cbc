"""Where pods may run: the same fields as a pod's own, typed, so that a typing error is refused when it is made."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from encoder_operator.api.v1alpha1.base import ApiType, LabelKey, LabelValue, Name, Rule, exactly_one, keyed

Weight = Annotated[int, Field(ge=1, le=100)]


class Toleration(ApiType):
    """A taint that the pods may run on."""

    RULES = (
        Rule(
            "self.operator == 'Equal' || !has(self.value) || self.value == ''",
            "a toleration with operator Exists has no value",
            lambda part: part.operator == "Equal" or not part.value,
        ),
        Rule(
            "self.operator == 'Exists' || has(self.key)",
            "a toleration without key needs operator Exists: it is for every taint",
            lambda part: part.operator == "Exists" or part.key is not None,
        ),
        Rule(
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "a toleration with tolerationSeconds needs effect NoExecute",
            lambda part: part.toleration_seconds is None or part.effect == "NoExecute",
        ),
    )

    key: LabelKey | None = None
    """Taint key; absent with operator Exists matches every taint."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """How key and value are compared."""
    value: str | None = None
    """Taint value, for Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Taint effect; absent for any."""
    toleration_seconds: int | None = None
    """How long a NoExecute taint is put up with."""


Tolerations = Annotated[list[Toleration], Field(max_length=32)]
NodeSelector = Annotated[dict[LabelKey, LabelValue], Field(max_length=32)]


class LabelRequirement(ApiType):
    """One comparison of a label."""

    RULES = (
        Rule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
            "In and NotIn need values, Exists and DoesNotExist have none",
            lambda part: (part.operator in ("In", "NotIn")) == bool(part.values),
        ),
    )

    key: LabelKey
    """Label key."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How."""
    values: Annotated[list[LabelValue], Field(max_length=64)] = Field(default_factory=list)
    """For In and NotIn."""


class LabelSelector(ApiType):
    """Which objects are meant, by their labels; an empty one means all."""

    match_labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] = Field(default_factory=dict)
    """Labels and their values."""
    match_expressions: Annotated[list[LabelRequirement], Field(max_length=16)] = Field(default_factory=list)
    """All must hold."""


class NodeRequirement(ApiType):
    """One comparison of a node's label or field."""

    RULES = (
        Rule(
            "self.operator in ['Exists', 'DoesNotExist'] ? !has(self.values) || self.values.size() == 0 :"
            " has(self.values) && (self.operator in ['Gt', 'Lt'] ? self.values.size() == 1 : self.values.size() > 0)",
            "In and NotIn need values, Gt and Lt one, Exists and DoesNotExist none",
            lambda part: (
                not part.values
                if part.operator in ("Exists", "DoesNotExist")
                else len(part.values) == 1 or (part.operator in ("In", "NotIn") and bool(part.values))
            ),
        ),
    )

    key: LabelKey
    """Label key, or metadata.name in matchFields."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """How it is compared."""
    values: Annotated[list[Annotated[str, StringConstraints(max_length=253)]], Field(max_length=64)] = Field(
        default_factory=list
    )
    """What it is compared with."""


class NodeTerm(ApiType):
    """Nodes for which all of these hold."""

    match_expressions: Annotated[list[NodeRequirement], Field(max_length=16)] = Field(default_factory=list)
    """Comparisons of labels."""
    match_fields: Annotated[list[NodeRequirement], Field(max_length=16)] = Field(default_factory=list)
    """Comparisons of fields."""


class PreferredNodes(ApiType):
    """Nodes that are better than others."""

    weight: Weight
    """How much better."""
    preference: NodeTerm
    """Which nodes."""


class RequiredNodes(ApiType):
    """Nodes of which it must be one."""

    node_selector_terms: Annotated[list[NodeTerm], Field(min_length=1, max_length=16)]
    """Any of these will do."""


class NodeAffinity(ApiType):
    """Which nodes."""

    required_during_scheduling_ignored_during_execution: RequiredNodes | None = None
    """Must hold."""
    preferred_during_scheduling_ignored_during_execution: Annotated[list[PreferredNodes], Field(max_length=16)] = Field(
        default_factory=list
    )
    """Should hold."""


class PodTerm(ApiType):
    """Near (or far from) which pods."""

    topology_key: LabelKey
    """Node label whose value near nodes share, as kubernetes.io/hostname."""
    label_selector: LabelSelector | None = None
    """Which pods."""
    namespaces: Annotated[list[Name], Field(max_length=16)] = Field(default_factory=list)
    """Their namespaces; the model's own if absent."""
    namespace_selector: LabelSelector | None = None
    """Their namespaces, by label."""


class WeightedPodTerm(ApiType):
    """A term that should hold."""

    weight: Weight
    """How important."""
    pod_affinity_term: PodTerm
    """The term."""


class PodAffinity(ApiType):
    """Near which pods, or for podAntiAffinity far from which."""

    required_during_scheduling_ignored_during_execution: Annotated[list[PodTerm], Field(max_length=16)] = Field(
        default_factory=list
    )
    """Must hold."""
    preferred_during_scheduling_ignored_during_execution: Annotated[list[WeightedPodTerm], Field(max_length=16)] = (
        Field(default_factory=list)
    )
    """Should hold."""


class Affinity(ApiType):
    """Rules about nodes and about other pods, as in a pod."""

    node_affinity: NodeAffinity | None = None
    """Which nodes."""
    pod_affinity: PodAffinity | None = None
    """Near which pods."""
    pod_anti_affinity: PodAffinity | None = None
    """Far from which pods. Refused where it would part pods that share a ReadWriteOnce volume."""


class TopologySpreadConstraint(ApiType):
    """How evenly the model's pods are spread."""

    RULES = (
        Rule(
            "!has(self.minDomains) || self.whenUnsatisfiable == 'DoNotSchedule'",
            "minDomains needs whenUnsatisfiable DoNotSchedule",
            lambda part: part.min_domains is None or part.when_unsatisfiable == "DoNotSchedule",
        ),
    )

    max_skew: Annotated[int, Field(ge=1, le=1000)]
    """By how many pods two places may differ."""
    topology_key: LabelKey
    """Node label that tells places apart, as topology.kubernetes.io/zone."""
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    """DoNotSchedule is refused where pods share a ReadWriteOnce volume."""
    label_selector: LabelSelector | None = None
    """Which pods are counted; the model's own serving pods if absent."""
    min_domains: Annotated[int, Field(ge=1, le=1000)] | None = None
    """How many places there must be, for DoNotSchedule."""


class ResourceClaim(ApiType):
    """A device by dynamic resource allocation: exactly one of `resourceClaimName` and `resourceClaimTemplateName`."""

    RULES = (
        Rule(
            "has(self.resourceClaimName) != has(self.resourceClaimTemplateName)",
            "a resource claim must name exactly one of resourceClaimName and resourceClaimTemplateName",
            lambda part: exactly_one(part, "resource_claim_name", "resource_claim_template_name"),
        ),
    )

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
    """What the claim is called within the pod."""
    resource_claim_name: Name | None = None
    """A ResourceClaim that exists; all pods of the model share it."""
    resource_claim_template_name: Name | None = None
    """A ResourceClaimTemplate; each pod gets a claim of its own."""
    request: Annotated[str, StringConstraints(max_length=63)] | None = None
    """Only this request of the claim; all of it if absent."""


ResourceClaims = Annotated[list[ResourceClaim], Field(max_length=8, json_schema_extra=keyed("name"))]
