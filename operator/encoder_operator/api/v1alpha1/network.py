"""Networking: Service, HTTPRoute and NetworkPolicy."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from encoder_operator.api.v1alpha1.base import AnnotationKey, ApiType, Name, Namespace, Rule
from encoder_operator.api.v1alpha1.scheduling import LabelSelector

Hostname = Annotated[
    str,
    StringConstraints(
        pattern=r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", max_length=253
    ),
]

# as the Gateway API has it
_PATH = r"^/([-A-Za-z0-9/._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})*$"


class ServiceSpec(ApiType):
    """The Service, which has the model's name."""

    RULES = (
        Rule(
            "!has(self.annotations) || self.annotations.all(key, !key.startsWith('encoders.dev/'))",
            "annotations with the prefix encoders.dev are reserved for the operator",
            lambda part: not any(key.startswith("encoders.dev/") for key in part.annotations),
        ),
    )

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Type of the Service. ClusterIP is reachable inside the cluster only."""
    port: Annotated[int, Field(ge=1, le=65535)] = 80
    """Port of the Service."""
    annotations: Annotated[
        dict[AnnotationKey, Annotated[str, StringConstraints(max_length=4096)]], Field(max_length=32)
    ] = Field(default_factory=dict)
    """Annotations of the Service, for instance for a cloud load balancer."""


class ParentRef(ApiType):
    """A Gateway that the route attaches to."""

    name: Name
    """Name of the Gateway."""
    namespace: Namespace | None = None
    """Namespace of the Gateway; the model's own by default."""
    section_name: Name | None = None
    """Name of a listener; all listeners by default."""


class HttpRoute(ApiType):
    """An HTTPRoute to the Service. If the cluster does not serve HTTPRoutes, a condition reports it."""

    RULES = (
        Rule(
            "!self.pathPrefix.matches('//|/[.][.]?(/|$)|%2[fF]')",
            "httpRoute.pathPrefix must not contain //, %2F, or the segments . and ..",
            lambda part: re.search("//|/[.][.]?(/|$)|%2[fF]", part.path_prefix) is None,
        ),
    )

    parent_refs: Annotated[list[ParentRef], Field(min_length=1, max_length=8)]
    """The Gateways to attach to."""
    hostnames: Annotated[list[Hostname], Field(max_length=16)] = Field(default_factory=list)
    """Host names to match; all of the Gateway's by default."""
    path_prefix: Annotated[str, StringConstraints(pattern=_PATH, max_length=200)] = "/"
    """Path prefix to match. It is removed from the request, so that `/minilm/pooling` arrives as `/pooling`."""


class Peer(ApiType):
    """Pods that may send requests, selected by namespace, by label, or both."""

    RULES = (
        Rule(
            "has(self.namespaceSelector) || has(self.podSelector)",
            "a peer must have a namespaceSelector, a podSelector, or both; an empty selector selects everything",
            lambda part: part.namespace_selector is not None or part.pod_selector is not None,
        ),
    )

    namespace_selector: LabelSelector | None = None
    """Selects namespaces by label; the model's own namespace by default."""
    pod_selector: LabelSelector | None = None
    """Selects pods by label; all pods of the namespaces by default."""


class NetworkPolicy(ApiType):
    """A NetworkPolicy for the serving pods. Only the listed peers and the model's own parity Jobs may send requests."""

    from_: Annotated[list[Peer], Field(max_length=16)] = Field(default_factory=list, alias="from")
    """Peers that may send requests: clients, a gateway, Prometheus. Empty allows the parity Jobs only."""


class Network(ApiType):
    """Networking of the model."""

    service: ServiceSpec = ServiceSpec()
    """The Service."""
    http_route: HttpRoute | None = None
    """HTTPRoute for access through a Gateway."""
    network_policy: NetworkPolicy | None = None
    """Restrict who may send requests. Needs a network plugin that enforces NetworkPolicies. Without this field no NetworkPolicy is created."""
