"""Case 2: an engine that computes something else never becomes an endpoint, and the gate can't be opened by hand."""

import json

import pytest

from encoder_node.waiting import wait_for
from encoder_platform.kube import DEPLOYMENT, POD, SLICES, Body, condition
from encoder_platform.scene import CONDITION_SECONDS
from encoder_platform.space import Space

OTHER_POOLING = ["--pooler-config", json.dumps({"seq_pooling_type": "CLS"})]


def endpoints(slices: list[Body]) -> list[str]:
    """Addresses that any state of any slice offered to clients."""
    offered = [e for s in slices for e in s.get("endpoints") or [] if e.get("conditions", {}).get("ready")]
    return [a for e in offered for a in e["addresses"]]


def open_the_gate(space: Space, pod: str) -> None:
    opened = {"status": {"conditions": [{"type": "encoders.dev/parity", "status": "True"}]}}
    patch = json.dumps(opened)
    space.kube.run("-n", space.name, "patch", "pod", pod, "--subresource=status", "--type=strategic", "-p", patch)


@pytest.mark.complaint(17)
@pytest.mark.fault(
    "the output of a first revision differs from the reference outputs",
    "`ParityFailed` with the numbers",
    "it never was an endpoint; no pod is left; a corrected spec serves",
)
def test_failed_parity_serves_no_traffic_until_the_spec_is_corrected(space: Space) -> None:
    with space.kube.watching(SLICES, space.name, "kubernetes.io/service-name=minilm") as slices:
        space.apply_model(serving={"accelerator": "cpu", "args": OTHER_POOLING})
        pod = wait_for("a serving pod", space.pods, seconds=CONDITION_SECONDS)[0]["metadata"]["name"]
        with pytest.raises(RuntimeError, match=r"encoders\.dev/parity"):
            open_the_gate(space, pod)
        verified = space.wait_condition("Verified", "ParityFailed")
        assert verified["status"] == "False"
        wait_for("no serving pod left", lambda: not space.pods(), seconds=90)
        parity = space.model()["status"]["candidateParity"]
        cosine = next(m for m in parity["metrics"] if m["name"] == "cosine")
        assert float(cosine["value"]) < float(cosine["threshold"])
        assert f"cosine {float(cosine['value']):.3g} (threshold" in verified["message"]
    assert slices, "the watch saw no EndpointSlice at all"
    assert endpoints(slices) == []
    assert condition(space.model(), "Ready")["status"] == "False"
    events = space.kube.all(("v1", "Event"), space.name)
    assert any(e["reason"] == "ParityFailed" and e["type"] == "Warning" for e in events)
    deployment = space.kube.get(DEPLOYMENT, "minilm", space.name)
    assert deployment is not None
    assert deployment["spec"]["replicas"] == 0

    space.patch_serving({"args": []})
    space.wait_ready()
    assert space.post({"data": {"text": "now it is right"}}).status == 200
    assert [p["metadata"]["name"] for p in space.kube.all(POD, space.name, "encoders.dev/component=serving")] != [pod]
