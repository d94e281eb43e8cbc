"""`kubectl encoders`, against a real API server. Logs need a kubelet: e2e/cases/test_transcripts.py."""

from encoder_platform import kubectl_plugin
from encoder_platform.kube import MODELS, Kube
from encoder_platform.operator_process import OperatorProcess
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn


def test_kubectl_encoders(scene: Scene, kube: Kube, operator: OperatorProcess, stand_in: StandIn) -> None:
    def encoders(*arguments: str) -> tuple[int, str]:
        return kubectl_plugin.run(kube, scene.name, *arguments)

    scene.apply_model("first")
    scene.wait_current("Ready", "first", seconds=60)
    code, listed = encoders("status")
    assert code == 0
    assert "sentence_transformer" in listed
    code, shown = encoders("status", "first")
    assert code == 0
    # a table of one model, then a line for each condition
    assert "\nReady=True  Ready  " in shown
    code, verdict = encoders("parity", "first")
    metrics = (kube.get(MODELS, "first", scene.name) or {})["status"]["parity"]["metrics"]
    assert code == 0
    assert verdict.startswith("active: Passed on ")
    assert [line.split()[0] for line in verdict.splitlines()[1:]] == [metric["name"] for metric in metrics]

    for action in ("retry", "update"):
        assert encoders(action, "first")[0] == 0
        annotations = (kube.get(MODELS, "first", scene.name) or {})["metadata"]["annotations"]
        assert annotations[f"encoders.dev/{action}"].endswith("Z")

    # what is missing or wrong is named, and nothing is done
    for arguments, message in (
        (("logs", "first", "weights"), "prep, parity or serve"),
        (("retry",), "the name of an EncoderModel is missing"),
        (("delete", "first"), "delete is no command"),
    ):
        code, refused = encoders(*arguments)
        assert (code, message in refused) == (2, True), refused
    assert encoders("status", "nobody")[0] == 1
