"""The commands without a cluster: what a user sees who has no kubeconfig."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from encoder_operator.tests.harness import encoder_model


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command with an empty home and none of the operator's variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ENCODER_", "KUBE"))}
    command = [sys.executable, "-m", "encoder_operator", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=kept | {"HOME": str(home)}, timeout=60)


@pytest.mark.parametrize("command", ["doctor", "gc", "run", "smoke-test --namespace demo"])
def test_without_a_kubeconfig_a_command_reports_it_in_one_line(tmp_path: Path, command: str) -> None:
    done = run(tmp_path, *command.split())
    assert done.returncode == 78
    errors = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(errors) == 1
    assert "no access to a cluster" in errors[0]
    assert "set KUBECONFIG" in errors[0]


@pytest.mark.parametrize(("accelerator", "suffix"), [("cpu", "cpu"), ("nvidia", "cuda")])
def test_render_needs_no_settings(tmp_path: Path, accelerator: str, suffix: str) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(yaml.safe_dump(encoder_model(accelerator=accelerator)))
    done = run(tmp_path, "render", str(file))
    assert done.returncode == 0, done.stderr
    (deployment,) = [found for found in yaml.safe_load_all(done.stdout) if found["kind"] == "Deployment"]
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image.startswith("encoder-operator/engine-sentence_transformer:")
    assert image.endswith(f"-{suffix}")
