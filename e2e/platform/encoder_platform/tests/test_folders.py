"""The traps of folders that are no packages (see CONTRIBUTING.md): each would make tests disappear without a word."""

import operator
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
FOLDERS = ("operator", "plugins", "kernels", "charts", "crds", "images", "e2e", "e2e/node", "e2e/platform", "docs")


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_is_no_package(folder: str) -> None:
    assert (ROOT / folder).is_dir()
    assert not (ROOT / folder / "__init__.py").exists()


def test_the_architecture_lists_the_folders_that_there_are() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    listed = set(re.findall(r"^\| `([a-z0-9/_-]+)` \|", page, re.MULTILINE))
    assert {path for path in listed if not (ROOT / path).is_dir()} == set()
    packages = (ROOT / "operator" / "encoder_operator", ROOT / "plugins" / "encoder_plugins")
    parts = {
        path.parent for package in packages for path in package.glob("*/__init__.py") if path.parent.name != "tests"
    }
    assert {str(path.relative_to(ROOT)) for path in parts} - listed == set()


def test_the_standard_library_keeps_its_operator() -> None:
    assert operator.add(1, 2) == 3


def test_every_test_file_is_collected(request: pytest.FixtureRequest) -> None:
    """Same-named test files in two packages must not hide one another."""
    listed = subprocess.run(
        ["git", "ls-files", "*/tests/*test_*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = {(ROOT / line).resolve() for line in listed.stdout.split() if Path(line).name.startswith("test_")}
    modules = [module for module in request.session.items if module.path in files]
    collected = {item.path for item in modules}
    requested = {Path(argument).resolve() for argument in request.config.args}
    expected = {file for file in files if any(file.is_relative_to(folder) for folder in requested)}
    deselected = expected - collected
    for file in deselected:
        marks = {m for m in ("engine", "cluster", "gpu", "soak") if f"mark.{m}" in file.read_text()}
        assert marks, f"{file.relative_to(ROOT)} was not collected"


def test_no_module_is_longer_than_a_sitting() -> None:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    long = {line: n for line in listed.stdout.split() if (n := len((ROOT / line).read_text().splitlines())) > 500}
    assert long == {}
