"""How requests reach the pods."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from encoder_operator.api.v1alpha1.base import ApiType, LabelKey, Name, Rule
from encoder_operator.api.v1alpha1.scheduling import LabelSelector

Hostname = Annotated[
    str,
    StringConstraints(
        pattern=r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", max_length=253
    ),
]


class ServiceSpec(ApiType):
    """The Service of the model's name."""

    RULES = (
        Rule(
            "!has(self.annotations) || self.annotations.all(key, !key.startsWith('encoders.dev/'))",
            "annotations of encoders.dev are the operator's",
            lambda part: not any(key.startswith("encoders.dev/") for key in part.annotations),
        ),
    )

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """ClusterIP is for clients in the cluster; the others open it to the outside."""
    port: Annotated[int, Field(ge=1, le=65535)] = 80
    """Port of the Service."""
    annotations: Annotated[dict[LabelKey, Annotated[str, StringConstraints(max_length=4096)]], Field(max_length=32)] = (
        Field(default_factory=dict)
    )
    """Annotations of the Service, for instance a cloud's load balancer settings."""


class ParentRef(ApiType):
    """A Gateway that the route is attached to."""

    name: Name
    """Name of the Gateway."""
    namespace: Name | None = None
    """Its namespace; the model's own if absent."""
    section_name: Annotated[str, StringConstraints(max_length=253)] | None = None
    """One listener of it; all if absent."""


class HttpRoute(ApiType):
    """An HTTPRoute of the Gateway API to the Service. Where the cluster has no Gateway API a condition says so."""

    parent_refs: Annotated[list[ParentRef], Field(min_length=1, max_length=8)]
    """The Gateways."""
    hostnames: Annotated[list[Hostname], Field(max_length=16)] = Field(default_factory=list)
    """Names that requests are for; all of the Gateway's if absent."""
    path_prefix: Annotated[str, StringConstraints(pattern=r"^/[^\s?#]*$", max_length=200)] = "/"
    """Requests below this path are the model's; it is taken off, so that `/minilm/pooling` arrives as `/pooling`."""


class Peer(ApiType):
    """Pods that may send requests: those that one or both selectors name."""

    RULES = (
        Rule(
            "has(self.namespaceSelector) || has(self.podSelector)",
            "a peer must have a namespaceSelector, a podSelector, or both; an empty selector means all",
            lambda part: part.namespace_selector is not None or part.pod_selector is not None,
        ),
    )

    namespace_selector: LabelSelector | None = None
    """In namespaces with these labels; in the model's own if absent."""
    pod_selector: LabelSelector | None = None
    """Pods with these labels; all of the namespaces if absent."""


class NetworkPolicy(ApiType):
    """A NetworkPolicy for the serving pods: only who is named here, and the model's own parity Jobs, may send requests."""

    from_: Annotated[list[Peer], Field(max_length=16)] = Field(default_factory=list, alias="from")
    """Who may: clients, a gateway, whatever reads the metrics. Empty for nobody but the parity Jobs."""


class Network(ApiType):
    """How requests reach the pods."""

    service: ServiceSpec = ServiceSpec()
    """The Service of the model's name."""
    http_route: HttpRoute | None = None
    """Also reachable through a Gateway."""
    network_policy: NetworkPolicy | None = None
    """Refuse requests from everyone else. Needs a network that enforces NetworkPolicies; without this field none is made."""
