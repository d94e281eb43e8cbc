"""What `kubectl get` prints about an EncoderModel, by a real API server."""

import re

from encoder_platform.kube import Kube
from encoder_platform.operator_process import OperatorProcess
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn

COLUMNS = ["NAME", "PLUGIN", "PHASE", "READY", "REASON", "AGE"]
WIDE = [*COLUMNS, "ACCELERATOR", "REVISION", "CANDIDATE", "ENDPOINT", "MESSAGE"]


def table(kube: Kube, scene: Scene, *options: str) -> dict[str, str]:
    """Return the cells of the only row by column, in order. kubectl leaves a cell empty if the field does not exist."""
    header, row = kube.run("-n", scene.name, "get", "em", *options).splitlines()
    found = list(re.finditer(r"\S+", header))
    ends = [column.start() for column in found[1:]] + [len(row)]
    return {column[0]: row[column.start() : end].strip() for column, end in zip(found, ends, strict=True)}


def test_columns(scene: Scene, kube: Kube, operator: OperatorProcess, stand_in: StandIn) -> None:
    scene.apply_model()
    status = scene.wait_current("Ready", seconds=60)["status"]
    revision, ready = status["activeRevision"], {"PHASE": "Serving", "READY": "1/1", "REASON": "Ready"}
    found = table(kube, scene)
    assert list(found) == COLUMNS
    assert found.items() >= ({"PLUGIN": "sentence_transformer"} | ready).items()
    found = table(kube, scene, "-o", "wide")
    assert list(found) == WIDE
    more = {"ACCELERATOR": "cpu", "REVISION": revision, "CANDIDATE": "", "ENDPOINT": status["endpoint"]}
    assert found.items() >= (ready | more | {"MESSAGE": f"1 pod of revision {revision} serves traffic"}).items()
