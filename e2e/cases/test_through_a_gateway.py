"""Case 15: a model behind a real Gateway: found by its host and prefix, which the engine never sees, and by nobody else's."""

from collections.abc import Iterator

import pytest

from encoder_node.waiting import wait_for
from encoder_platform import gateway, install
from encoder_platform.kube import condition
from encoder_platform.space import Space

HOST, PREFIX = "models.internal", "/search"
BODY = '{"data": {"text": "A man is eating a piece of bread."}}'


@pytest.fixture
def edge(platform: install.Platform) -> Iterator[None]:
    with gateway.running(platform):
        # it looks for new kinds rarely, and when it starts
        platform.kube.run("-n", install.OPERATOR_NAMESPACE, "rollout", "restart", "deploy/encoder-operator")
        platform.kube.rolled_out("encoder-operator", install.OPERATOR_NAMESPACE)
        yield


def status_at_the_edge(space: Space, host: str, path: str) -> str:
    """The HTTP status of a request to the Gateway."""
    options = ("-sS", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Content-Type: application/json")
    target = ("-H", f"Host: {host}", "--data-binary", BODY, gateway.URL + path)
    return space.kube.run("-n", space.name, "exec", "client", "--", "curl", *options, *target)


# the gateway is a program of a thousand packages, which take minutes to build
@pytest.mark.soak
@pytest.mark.alone
def test_a_gateway_leads_to_the_model_by_host_and_prefix(edge: None, space: Space) -> None:
    route = {
        "parentRefs": [{"name": gateway.NAME, "namespace": gateway.NAMESPACE}],
        "hostnames": [HOST],
        "pathPrefix": PREFIX,
    }
    # the policy is only an object here: this node enforces none
    among = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [gateway.NAMESPACE, space.name]}
    reached_by = [{"namespaceSelector": {"matchExpressions": [among]}}]
    space.apply_model(network={"httpRoute": route, "networkPolicy": {"from": reached_by}})
    space.wait_ready()
    assert condition(space.model(), "Degraded")["status"] == "False"
    wait_for("the route", lambda: gateway.accepted(space.kube, "minilm", space.name), seconds=60)
    wait_for("the way", lambda: status_at_the_edge(space, HOST, f"{PREFIX}/pooling") == "200", seconds=30)
    assert status_at_the_edge(space, "elsewhere.internal", f"{PREFIX}/pooling") == "404"
    assert status_at_the_edge(space, HOST, "/pooling") == "404"

    space.patch({"network": {"httpRoute": None}})
    wait_for("the route gone", lambda: space.kube.get(gateway.ROUTE, "minilm", space.name) is None, seconds=30)
    wait_for("no way", lambda: status_at_the_edge(space, HOST, f"{PREFIX}/pooling") == "404", seconds=30)
    assert space.post({"data": {"text": "by the Service"}}).status == 200
