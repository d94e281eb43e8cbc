"""Pods that are none of ours cost the operator nothing: the API server does not send them."""

import asyncio
import secrets
import time
from collections.abc import Iterator

import pytest

from encoder_platform import manifests
from encoder_platform.bulk import Body, connected, path_of
from encoder_platform.kube import POD, Kube
from encoder_platform.operator_process import OperatorProcess
from encoder_platform.plane import Plane
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn

MANY, PARTS, MOST_MIB = 2000, 20, 3.0


@pytest.fixture
def foreign(kube: Kube) -> Iterator[str]:
    name = f"foreign-{secrets.token_hex(3)}"
    kube.apply(manifests.namespace(name))
    yield name
    kube.delete(("v1", "Namespace"), name)


@pytest.mark.complaint(22)
@pytest.mark.soak
def test_two_thousand_foreign_pods_do_not_raise_the_operators_memory(
    plane: Plane, scene: Scene, stand_in: StandIn, operator: OperatorProcess, foreign: str
) -> None:
    scene.apply_model(rollout={"minReadySeconds": 0})
    scene.wait_current("Ready", seconds=60)
    operator.restart()
    alone = resident(operator)
    asyncio.run(make_pods(plane, foreign))
    assert len(scene.kube.all(POD, foreign)) == MANY
    watching = resident(operator)
    # one that starts lists what is there
    operator.restart()
    started = resident(operator)
    print(
        f"alone {alone:.1f} MiB, beside {MANY} foreign pods {watching:.1f} MiB, started beside them {started:.1f} MiB"
    )
    assert watching - alone <= MOST_MIB
    assert started - alone <= MOST_MIB
    # and it works on
    scene.patch_serving({"maxModelLen": 64})
    scene.wait_current("Ready", seconds=60)
    asyncio.run(remove_pods(plane, foreign))


def resident(operator: OperatorProcess) -> float:
    """Return its memory once it has come to rest."""
    time.sleep(5)
    return operator.resident()


async def make_pods(plane: Plane, namespace: str) -> None:
    async with connected(plane.control.kubeconfig) as bulk:
        path = path_of("v1", "pods", namespace)
        await bulk.every(bulk.send("POST", path, pod(namespace, number)) for number in range(MANY))


async def remove_pods(plane: Plane, namespace: str) -> None:
    async with connected(plane.control.kubeconfig) as bulk:
        path = path_of("v1", "pods", namespace)
        # all at once can take longer than the API server gives a request
        for part in range(PARTS):
            selector = f"app.kubernetes.io/instance=web-{part}"
            await bulk.send("DELETE", path, gracePeriodSeconds="0", labelSelector=selector)


def pod(namespace: str, number: int) -> Body:
    # nobody schedules it; labels and annotations as pods of other users have them
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"web-{number:04d}",
            "namespace": namespace,
            "labels": {"app": "web", "app.kubernetes.io/instance": f"web-{number % PARTS}"},
            "annotations": {"description": "x" * 500},
        },
        "spec": {
            "schedulerName": "nobody",
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "web",
                    "image": "web",
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }
