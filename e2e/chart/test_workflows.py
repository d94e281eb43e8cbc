"""The workflows of GitHub Actions are valid, and run the commands that a developer runs."""

import re
import subprocess
from typing import Any

import yaml

from encoder_node import extra_programs
from encoder_platform import chart

WORKFLOWS = chart.ROOT / ".github" / "workflows"


def commands(name: str, job: str) -> str:
    """What a job runs."""
    steps: list[dict[str, Any]] = yaml.safe_load((WORKFLOWS / name).read_text())["jobs"][job]["steps"]
    return "\n".join(step["run"] for step in steps if "run" in step)


def test_the_workflows_are_valid() -> None:
    found = sorted(str(path) for path in WORKFLOWS.iterdir())
    command = [str(extra_programs.program("actionlint")), "-no-color", "-shellcheck=", "-pyflakes=", *found]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_tag_runs_the_tests_and_then_what_make_release_runs() -> None:
    jobs = yaml.safe_load((WORKFLOWS / "release.yaml").read_text())["jobs"]
    assert jobs["release"]["needs"] == "test"
    assert jobs["test"]["uses"] == "./.github/workflows/test.yaml"
    assert ".ci/run" in commands("test.yaml", "test")
    # each variable of the command is one that the target knows
    (line,) = re.findall(r"^make release (.*)", commands("release.yaml", "release").replace("\\\n", ""), re.MULTILINE)
    target = (chart.ROOT / "Makefile").read_text().partition("\nrelease: ")[2].partition("\n\n")[0]
    passed = set(re.findall(r"([A-Z_]+)=", line))
    assert {"REGISTRY", "VERSION", "KEY"} <= passed <= set(re.findall(r"\$\(([A-Z_]+)\)", target))
