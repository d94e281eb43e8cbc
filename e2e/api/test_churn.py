"""Models come, change and go, and the operator dies now and then: its memory stays, and nothing is left behind.

`make soak` does it for an hour; the operator that is killed at every write is in test_api_faults.py.
"""

import itertools
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kubernetes.client import ApiException

from encoder_node.waiting import wait_for
from encoder_platform.kube import DEPLOYMENT, JOB, MODELS, POD, REVISION, Kind
from encoder_platform.operator_process import OperatorProcess
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn

SERVICE = ("v1", "Service")
AT_ONCE = 12


def churn(scene: Scene, operator: OperatorProcess, seconds: float, kill_every: float) -> list[tuple[float, float]]:
    """Create, edit and delete for so long; returns (seconds, MiB) of the operator's last life."""
    chance, numbers = random.Random(7), itertools.count()
    alive: list[str] = []
    samples: list[tuple[float, float]] = []
    begun = killed = time.monotonic()
    while (now := time.monotonic()) - begun < seconds:
        what = chance.choice(("create", "edit", "edit", "delete")) if alive else "create"
        try:
            if what == "create" and len(alive) < AT_ONCE:
                alive.append(f"m{next(numbers)}")
                scene.apply_model(alive[-1])
            elif what == "delete":
                scene.kube.delete(MODELS, alive.pop(chance.randrange(len(alive))), scene.name)
            else:
                scene.patch_serving({"replicas": chance.randint(1, 3)}, chance.choice(alive))
        except ApiException as error:
            if error.status not in (409, 429, 500, 503):
                raise
        if now - killed > kill_every:
            operator.kill()
            operator.restart()
            killed, samples = now, []
        samples.append((now - begun, operator.resident()))
        time.sleep(0.3)
    for name in alive:
        scene.kube.delete(MODELS, name, scene.name)
    return samples


def left(scene: Scene) -> list[str]:
    kinds: tuple[Kind, ...] = (MODELS, JOB, DEPLOYMENT, POD, REVISION, SERVICE)
    found = ((kind, body) for kind in kinds for body in scene.kube.all(kind, scene.name))
    return [f"{kind[1]} {body['metadata']['name']}" for kind, body in found]


@contextmanager
def nothing_left_of(scene: Scene) -> Iterator[None]:
    yield
    wait_for("nothing left", lambda: not left(scene), seconds=120)


@pytest.mark.complaint(23)
@pytest.mark.soak
def test_churn_leaves_nothing_behind_and_memory_flat(
    scene: Scene, operator: OperatorProcess, stand_in: StandIn
) -> None:
    with nothing_left_of(scene):
        # kills in the first tenth, then one life whose memory is watched
        churn(scene, operator, seconds=360, kill_every=120)
        samples = churn(scene, operator, seconds=54 * 60, kill_every=float("inf"))
    assert not [line for line in operator.lines() if "exception" in line]
    # what is allocated in the first half is a working set, not a leak
    steady = samples[len(samples) // 2 :]
    times, sizes = [t for t, _ in steady], [size for _, size in steady]
    slope = statistics.linear_regression(times, sizes).slope * 3600
    noise = statistics.pstdev(sizes)
    print(f"{slope:+.2f} MiB an hour, {min(sizes):.1f} to {max(sizes):.1f} MiB")
    grown = slope * (times[-1] - times[0]) / 3600
    assert grown <= max(3 * noise, 2.0), f"grew by {grown:.1f} MiB, the noise is {noise:.2f} MiB"
