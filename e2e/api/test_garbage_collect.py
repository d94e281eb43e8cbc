"""`encoder-operator gc` as the chart's CronJob runs it: with the operator's account, against the real API server."""

import os
import subprocess
import sys
from pathlib import Path

from encoder_node.waiting import wait_for
from encoder_platform.kube import JOB, Body, Kube
from encoder_platform.operator_process import OperatorProcess, chart_environment, kubeconfig_of_the_operator
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn

_GC = "import sys; sys.modules['kubernetes'] = None; from encoder_operator.cli.main import main; sys.exit(main(['gc']))"


def collect(kube: Kube, folder: Path) -> str:
    kubeconfig = folder / "collect.kubeconfig"
    kubeconfig.write_text(kubeconfig_of_the_operator(kube))
    environment = {**os.environ, **chart_environment(kube), "KUBECONFIG": str(kubeconfig)}
    finished = subprocess.run([sys.executable, "-c", _GC], env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout + finished.stderr


def collecting(scene: Scene) -> list[Body]:
    return scene.kube.all(JOB, scene.name, "encoders.dev/component=gc")


def test_one_job_per_pvc_keeps_referenced_artifacts(
    scene: Scene, operator: OperatorProcess, stand_in: StandIn, tmp_path: Path
) -> None:
    collect(scene.kube, tmp_path)
    # nothing was prepared on the claim yet
    assert collecting(scene) == []
    scene.apply_model()
    live = scene.wait_current("Ready", seconds=120)
    output = collect(scene.kube, tmp_path)
    assert scene.name in output
    (job,) = collecting(scene)
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert live["status"]["artifact"]["key"] in arguments
    pods = wait_for(
        "the collecting pod",
        lambda: scene.kube.all(("v1", "Pod"), scene.name, "encoders.dev/component=gc"),
        seconds=60,
    )
    assert pods[0]["spec"]["automountServiceAccountToken"] is False
    # it is not a child of a model, so its events enqueue nothing
    assert "encoders.dev/model" not in {**job["metadata"]["labels"], **pods[0]["metadata"]["labels"]}
    # the last one has not been reported as finished
    collect(scene.kube, tmp_path)
    assert len(collecting(scene)) == 1
