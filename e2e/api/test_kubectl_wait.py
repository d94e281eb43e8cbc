"""`kubectl wait --for=condition=Ready` right after an edit returns when the edit serves, and not before: 40 times in CI, 200 with `-m soak`."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from encoder_platform.kube import MODELS, Body, condition
from encoder_platform.operator_process import OperatorProcess
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn

MODELS_MADE = 8


def edit(number: int) -> Body:
    """In turn: a new revision, a known one, more pods, fewer pods, and an edit that changes nothing."""
    return (
        {"serving": {"maxModelLen": 100 + number}},
        {"serving": {"maxModelLen": 99}},
        {"serving": {"replicas": 2}},
        {"serving": {"replicas": 1}},
        {"rollout": {"progressDeadlineSeconds": 600 + number}},
    )[number % 5]


def early(scene: Scene, name: str, number: int) -> list[str]:
    """Edit, wait, and return what was not so when `kubectl wait` returned."""
    scene.kube.patch(MODELS, name, scene.name, {"spec": edit(number)})
    model = scene.wait_ready(name, seconds=300)
    wanted = f"--max-model-len {model['spec']['serving']['maxModelLen']} "
    deployment = scene.deployment(name) or {}
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    # a terminating pod is not an endpoint
    staying = [pod for pod in scene.pods(name) if not pod["metadata"].get("deletionTimestamp")]
    ready = [pod for pod in staying if condition(pod, "Ready").get("status") == "True"]
    revisions = {pod["metadata"]["labels"]["encoders.dev/revision"] for pod in ready}
    checks = {
        "the status is of an older spec": model["status"]["observedGeneration"] == model["metadata"]["generation"],
        "the Deployment is of an older spec": wanted in " ".join([*container["args"], ""]),
        # how many of them answer is nothing that Ready promises
        "another number of pods is requested": deployment["spec"]["replicas"] == model["spec"]["serving"]["replicas"],
        "pods of another revision answer": revisions == {model["status"]["activeRevision"]},
        "nobody has verified it": model["status"]["parity"]["revision"] == model["status"]["activeRevision"],
    }
    return [f"{name}, edit {number}: {problem}" for problem, fine in checks.items() if not fine]


@pytest.mark.complaint(18)
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("edits", [5, pytest.param(25, marks=pytest.mark.soak)])
def test_wait_never_returns_early(scene: Scene, stand_in: StandIn, operator: OperatorProcess, edits: int) -> None:
    names = [f"m{number}" for number in range(MODELS_MADE)]
    for name in names:
        scene.apply_model(name, rollout={"minReadySeconds": 0}, serving={"accelerator": "cpu", "maxModelLen": 99})

    def race(name: str) -> list[str]:
        scene.wait_ready(name)
        return [problem for number in range(edits) for problem in early(scene, name, number)]

    with ThreadPoolExecutor(len(names)) as threads:
        problems = [problem for found in threads.map(race, names) for problem in found]
    assert not problems, "\n".join(problems)
