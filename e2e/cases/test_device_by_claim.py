"""Case 14: a device by dynamic resource allocation: the engine's container gets it, and a pod for which none is left waits, which the status reports."""

from collections.abc import Iterator

import pytest

from encoder_node.waiting import wait_for
from encoder_platform import device_driver, install
from encoder_platform.kube import condition
from encoder_platform.space import Space

TEMPLATE = "one-device"
SETTING = "of-the-encoder"


@pytest.fixture
def one_device(platform: install.Platform) -> Iterator[None]:
    with device_driver.running(platform, devices=1):
        yield


def test_an_engine_gets_the_device_it_claims_and_a_second_one_waits(one_device: None, space: Space) -> None:
    space.kube.apply(device_driver.template(space.name, TEMPLATE, SETTING))
    claims = [{"name": "gpu", "resourceClaimTemplateName": TEMPLATE}]
    space.apply_model(serving={"resourceClaims": claims})
    space.wait_ready()

    (pod,) = space.pods()
    (claim,) = space.kube.all(device_driver.CLAIM, space.name)
    (device,) = claim["status"]["allocation"]["devices"]["results"]
    assert device["driver"] == device_driver.DRIVER
    assert [user["uid"] for user in claim["status"]["reservedFor"]] == [pod["metadata"]["uid"]]
    # the runtime gave the device to the container of the engine
    seen = space.kube.run("-n", space.name, "exec", pod["metadata"]["name"], "--", "printenv", "user_setting")
    assert seen.strip() == SETTING
    assert space.post({"data": {"text": "A man is eating a piece of bread."}}).status == 200

    space.kube.run("-n", space.name, "scale", "em/minilm", "--replicas=2")
    found = space.wait_condition("Progressing", "InsufficientGPU", seconds=60)
    assert "cannot allocate all claims" in found["message"], "these are not the scheduler's words"
    assert condition(space.model(), "Available")["status"] == "True"
    space.kube.run("-n", space.name, "scale", "em/minilm", "--replicas=1")
    wait_for("one pod", lambda: [p["metadata"]["uid"] for p in space.pods()] == [pod["metadata"]["uid"]], seconds=60)
