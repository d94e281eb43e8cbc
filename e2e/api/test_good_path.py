"""The stand-in against the real operator: every step from apply to Ready, and what it leaves."""

from encoder_platform.kube import condition
from encoder_platform.operator_process import OperatorProcess
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn


def test_apply_to_ready(scene: Scene, operator: OperatorProcess, stand_in: StandIn) -> None:
    scene.apply_model()
    live = scene.wait_current("Ready", seconds=60)
    assert live["status"]["phase"] == "Serving"
    assert live["status"]["parity"]["result"] == "Passed"
    assert [len(scene.jobs("prep")), len(scene.jobs("parity")), len(scene.pods())] == [1, 1, 1]
    assert condition(scene.pods()[0], "encoders.dev/parity")["status"] == "True"
    assert operator.stop() == 0
