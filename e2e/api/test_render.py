"""`encoder-operator render` prints what the operator applies: the same fields, compared on the API server."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from encoder_operator.client import apply_diff
from encoder_platform.kube import Body
from encoder_platform.operator_process import OperatorProcess, chart_environment
from encoder_platform.scene import Scene
from encoder_platform.stand_in import ARTIFACT, REFERENCE, StandIn


def rendered(model: Body, scene: Scene, folder: Path) -> list[Body]:
    """What the command prints for a model as it is on the API server, with the chart's settings and without a cluster."""
    file = folder / "model.yaml"
    file.write_text(yaml.safe_dump(model))
    command = [sys.executable, "-m", "encoder_operator", "render", str(file), "--digest", ARTIFACT]
    environment = {"PATH": "", "HOME": str(folder), **chart_environment(scene.kube)}
    done = subprocess.run(
        [*command, "--reference", REFERENCE], capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def test_what_render_prints_is_what_is_applied(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess, tmp_path: Path
) -> None:
    scene.apply_model(
        storage={"create": {"size": "2Gi", "accessModes": ["ReadWriteMany"]}},
        serving={"replicas": 2},
        network={"networkPolicy": {}},
        rollout={"minReadySeconds": 0},
    )
    model = scene.wait_current("Ready", seconds=60)
    found = rendered(model, scene, tmp_path)
    live = {
        (body["kind"], body["metadata"]["name"]): scene.kube.get(
            (body["apiVersion"], body["kind"]), body["metadata"]["name"], scene.name
        )
        for body in found
    }
    assert [key for key, body in live.items() if body is None] == []
    kinds = ["PersistentVolumeClaim", "Job", "ControllerRevision", "Service", "NetworkPolicy", "Deployment"]
    assert [kind for kind, _ in live] == [*kinds, "PodDisruptionBudget", "Job"]
    differ = []
    for body in found[:-1]:
        applied = known(live, body)
        if body["kind"] == "ControllerRevision":
            body, applied = without_what_only_a_cluster_knows(body), without_what_only_a_cluster_knows(applied)
        # a Job is created, never applied: no manager of fields tells which of them came from the operator
        if not (is_part(body, applied) if body["kind"] == "Job" else apply_diff.is_up_to_date(body, applied)):
            differ.append((body, applied))
    assert differ == []
    # the last one, which compares, names the pod that it asks
    parity, asked = (body["spec"]["template"]["spec"]["containers"][0] for body in (found[-1], known(live, found[-1])))
    assert {name: value for name, value in parity.items() if name != "args"} == {
        name: asked[name] for name in parity if name != "args"
    }
    assert [option for option in parity["args"] if option.startswith("--")] == [
        option for option in asked["args"] if option.startswith("--")
    ]


def is_part(one: Any, whole: Any) -> bool:
    """Whether every field of `one` has the same value in `whole`."""
    if isinstance(one, dict) and isinstance(whole, dict):
        return all(key in whole and is_part(value, whole[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(whole, list):
        return len(one) == len(whole) and all(map(is_part, one, whole))
    return bool(one == whole)


def known(live: dict[tuple[str, str], Body | None], body: Body) -> Body:
    found = live[body["kind"], body["metadata"]["name"]]
    assert found is not None
    return found


def without_what_only_a_cluster_knows(record: Body) -> Body:
    """A revision's record without what the prep Job and the claim have told, and no manifest says."""
    found = copy.deepcopy(record)
    for told in ("bytes", "revision"):
        del found["data"]["pinned"]["artifact"][told]
    found["metadata"].pop("annotations", None)
    found["metadata"]["labels"].pop("encoders.dev/claim-uid", None)
    return found
