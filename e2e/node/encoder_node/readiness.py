"""Questions to a starting cluster: is the node ready, does cluster DNS answer."""

from __future__ import annotations

import socket
import struct

from encoder_node.api_server import ApiServer
from encoder_node.errors import NodeError


def node_ready(api: ApiServer, name: str) -> bool:
    """Whether the node's own condition Ready is True."""
    try:
        node = api.get(f"/api/v1/nodes/{name}")
    except NodeError:
        return False
    conditions = node["status"].get("conditions", []) if node is not None else []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def service_account_ready(api: ApiServer, namespace: str = "default") -> bool:
    """Whether a namespace has the ServiceAccount without which no pod is admitted."""
    try:
        return api.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/default") is not None
    except NodeError:
        return False


def dns_query(name: str, number: int = 1) -> bytes:
    """Returns a question for the IPv4 address of a name."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">HHHHHH", number, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", 1, 1)


def has_answer(reply: bytes, number: int = 1) -> bool:
    """Whether a reply is for that question, without an error, and with at least one answer."""
    if len(reply) < 12:
        return False
    got, flags, _, answers = struct.unpack(">HHHH", reply[:8])
    return bool(got == number and flags & 0x000F == 0 and answers > 0)


def dns_answers(server: str, name: str = "kubernetes.default.svc.cluster.local") -> bool:
    """Whether a name server knows a name of the cluster; queried from this machine, through the service's address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        connection.settimeout(0.5)
        try:
            connection.sendto(dns_query(name), (server, 53))
            return has_answer(connection.recv(512))
        except OSError:
            return False
