"""The examples of docs/integrations.md: Argo CD's check of health in its own Lua, and an InferencePool on a real API server."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from encoder_node import extra_programs, module_sources
from encoder_node.waiting import wait_for
from encoder_operator import naming
from encoder_operator.resources.serving_pod_template import PORT
from encoder_operator.tests.harness import Harness, failing_report
from encoder_platform import chart
from encoder_platform.kube import Body, Kube
from encoder_platform.plane import established

PAGE = (chart.ROOT / "docs" / "integrations.md").read_text()
EXAMPLES: dict[str, Body] = {
    body["kind"]: body
    for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    for body in yaml.safe_load_all(text)
}
HEALTH = EXAMPLES["ConfigMap"]["data"][f"resource.customizations.health.{naming.GROUP}_{naming.KIND}"]
# the fixture `cluster` makes it
TEAM = "team-a"


def lua(value: Any) -> str:
    """Write a value of JSON in Lua."""
    match value:
        case None:
            return "nil"
        case bool() | int() | float():
            return json.dumps(value)
        case str():
            return "".join(["'", *(f"\\{byte:03d}" for byte in value.encode()), "'"])
        case list():
            return f"{{{', '.join(map(lua, value))}}}"
        case _:
            return f"{{{', '.join(f'[{lua(key)}] = {lua(each)}' for key, each in value.items())}}}"


def health(model: Body, folder: Path) -> tuple[str, str]:
    """Return what Argo CD shows of an EncoderModel."""
    script = folder / "health.lua"
    script.write_text(
        f"obj = {lua(model)}\nlocal function check()\n{HEALTH}\nend\nlocal h = check()\nprint(h.status, h.message)\n"
    )
    command = [str(extra_programs.program("glua")), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    status, _, message = done.stdout.strip().partition("\t")
    return status, message


async def test_argo_cd_waits_for_the_comparison_and_shows_what_failed(tmp_path: Path) -> None:
    harness = Harness()

    def shown() -> tuple[str, str]:
        return health(harness.live, tmp_path)

    assert shown()[0] == "Progressing"
    await harness.reconcile()
    assert shown() == ("Progressing", harness.message("Progressing"))
    await harness.settle()
    assert shown() == ("Healthy", harness.message("Ready"))
    # an edit that the operator has not seen yet
    harness.parity = failing_report
    harness.change(maxModelLen=64)
    assert shown()[0] == "Progressing"
    await harness.settle()
    assert shown() == ("Degraded", harness.message("UpToDate"))
    assert "cosine" in shown()[1]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        pytest.param({"suspend": True}, "Suspended", id="suspended"),
        pytest.param({"plugin": "unknown"}, "Degraded", id="rejected"),
    ],
)
async def test_argo_cd_shows_models_that_do_not_serve(change: dict[str, Any], status: str, tmp_path: Path) -> None:
    harness = Harness()
    await harness.settle()
    edit: Callable[[Body], Any] = lambda live: live["spec"].update(change)  # noqa: E731
    harness.edit(edit)
    await harness.settle()
    assert health(harness.live, tmp_path)[0] == status


@pytest.mark.usefixtures("cluster")
def test_the_inference_pool_is_one_that_its_api_knows_and_picks_serving_pods(kube: Kube) -> None:
    folder = module_sources.folder(module_sources.INFERENCE_EXTENSION) / "config" / "crd" / "bases"
    kube.run("apply", "--server-side", "-f", str(folder / "inference.networking.k8s.io_inferencepools.yaml"))
    wait_for("the pools' API", lambda: established(kube, "inferencepools.inference.networking.k8s.io"), seconds=30)
    example = EXAMPLES["InferencePool"]
    body = json.dumps({**example, "metadata": {**example["metadata"], "namespace": TEAM}})
    kube.run("create", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "-f", "-", stdin=body)
    assert example["spec"]["selector"]["matchLabels"] == {
        naming.MODEL: example["metadata"]["name"],
        naming.COMPONENT: "serving",
    }
    assert example["spec"]["targetPorts"] == [{"number": PORT}]
