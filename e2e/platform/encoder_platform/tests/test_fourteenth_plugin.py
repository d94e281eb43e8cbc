"""docs/adding-a-plugin.md, followed to the letter in a copy of the repository.

The commands and the files are read from the page, so the page and this test cannot differ. What the page says about the results is
checked afterwards.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from encoder_platform.pages import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

GUIDE = ROOT / "docs" / "adding-a-plugin.md"
NAME, LIBRARY = "passage_vectors", "transformers"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# a file's path ends the paragraph before its content
_FILE = re.compile(r"`([^`\s]+)`:\s*\Z")


def steps(page: str) -> Iterator[tuple[str | None, str]]:
    """Yield the commands of a page, and its files with their paths, in order; other blocks are left out."""
    for block in _FENCE.finditer(page):
        language, content = block.groups()
        named = _FILE.search(page[: block.start()])
        if language == "sh":
            yield None, content
        elif named:
            yield named[1], content


def test_commands_and_files_are_distinguished() -> None:
    page = (
        "Text, in `a/b.in`:\n\n```\none\n```\n\n```sh\nrun\n```\n\n```console\n$ not run\n```\n\n```\nnot a file\n```\n"
    )
    assert list(steps(page)) == [("a/b.in", "one\n"), (None, "run\n")]


def test_the_page_pins_the_versions_that_the_other_libraries_pin() -> None:
    """Another torch would be a download of gigabytes, and a copy of its own."""
    (requirements,) = (content for path, content in steps(GUIDE.read_text("utf-8")) if path is not None)
    other = (ROOT / "images/reference/sentence_transformers/requirements.in").read_text()
    assert set(requirements.split()) < set(other.split())


@dataclass(frozen=True)
class Followed:
    """A copy of the repository in which the page was followed.

    Attributes:
        root: The copy.
        output: What the commands printed.
        files: The files that the page has.
        before: The content of each file of the repository that the page changed.
    """

    root: Path
    output: str
    files: Mapping[str, str]
    before: Mapping[str, str] = field(repr=False)

    def changed(self) -> set[str]:
        """Return the paths of the files of the repository that were changed."""
        return {path for path, content in self.before.items() if (self.root / path).read_text("utf-8") != content}


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    """Follow the page."""
    root = tmp_path_factory.mktemp("guide") / "repository"
    paths = copy(root)
    blocks = list(steps(GUIDE.read_text("utf-8")))
    files = {path: content for path, content in blocks if path is not None}
    script = ["set -euo pipefail"]
    for number, (path, content) in enumerate(blocks):
        if path is None:
            script.append(content)
        else:
            # the page's own bytes, whatever a shell would make of them
            (root.parent / str(number)).write_text(content, "utf-8")
            script.append(f"mkdir -p {Path(path).parent} && cp {root.parent / str(number)} {path}")
    before = {path: found for path in paths if (found := text(ROOT / path)) is not None}
    folders = tomllib.loads(before["pyproject.toml"])["tool"]["hatch"]["build"]["dev-mode-dirs"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(root / folder) for folder in folders),
        "TMPDIR": str(root.parent),
    }
    # this test may itself run below make and pytest-xdist
    for name in ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "MAKEFLAGS", "MAKELEVEL"):
        environment.pop(name, None)
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    return Followed(root=root, output=done.stdout, files=files, before=before)


def copy(root: Path) -> list[str]:
    """Copy the repository's files to ``root``, which uses this checkout's environment; return their paths."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    paths = [path for path in listed if path and (ROOT / path).is_file()]
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, root / path)
    environment = root / ".venv"
    environment.mkdir()
    for part in ("bin", "lib", "pyvenv.cfg"):
        (environment / part).symlink_to(ROOT / ".venv" / part)
    # newer than the lock: `make` must not install the copy into this checkout's environment
    (environment / ".synced").touch()
    if (cache := ROOT / ".mypy_cache").is_dir():
        shutil.copytree(cache, root / cache.name, ignore_dangling_symlinks=True)
    return paths


def text(path: Path) -> str | None:
    """Return the content of a text file; None for another one."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        return None


@pytest.mark.soak
def test_only_generated_files_change_beside_the_folder_and_the_lock(followed: Followed) -> None:
    assert followed.changed() == {
        "charts/encoder-operator/files/crds/encodermodels.encoders.dev.yaml",
        "charts/encoder-operator/files/plugins.yaml",
        "crds/encodermodels.encoders.dev.yaml",
        "docs/encodermodel.md",
        "docs/http-api.md",
        "docs/plugins.md",
        "images/docker-bake.json",
    }
    page = GUIDE.read_text("utf-8")
    assert all(f"`{path}`" in page for path in followed.changed() if "files/crds" not in path)


@pytest.mark.soak
def test_its_tests_passed_with_the_engine_among_them(followed: Followed) -> None:
    passed = re.search(r"^\S*=* ?(\d+) passed", followed.output, re.MULTILINE)
    assert passed, followed.output[-2000:]
    assert int(passed[1]) >= 19
    assert "skipped" not in followed.output
    assert "deselected" not in followed.output


@pytest.mark.soak
def test_the_library_has_a_lock_and_recorded_in_an_environment_made_from_it(followed: Followed) -> None:
    lock = (followed.root / "images" / "reference" / LIBRARY / "requirements.lock").read_text()
    for pin in followed.files[f"images/reference/{LIBRARY}/requirements.in"].split():
        assert f"{pin} \\\n    --hash=sha256:" in lock
    (artifact,) = followed.root.parent.glob(f"tmp.*/artifacts/{NAME}")
    about = json.loads((artifact / "reference" / "about.json").read_text())
    assert f"transformers=={about['library'].removeprefix('transformers ')} \\\n" in lock
    assert json.dumps(about["library"]) in followed.output
    assert json.loads((artifact / "MANIFEST.json").read_text())["plugin"] == NAME


@pytest.mark.soak
def test_the_cluster_accepts_it(followed: Followed) -> None:
    definition = yaml.safe_load((followed.root / "crds" / "encodermodels.encoders.dev.yaml").read_text())
    (version,) = definition["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert NAME in spec["properties"]["plugin"]["enum"]
    assert NAME in yaml.safe_load((followed.root / "charts/encoder-operator/files/plugins.yaml").read_text())


@pytest.mark.soak
def test_it_has_images_and_prep_gets_the_lock(followed: Followed) -> None:
    bake = json.loads((followed.root / "images" / "docker-bake.json").read_text())
    assert bake["target"][f"prep-{NAME}"]["args"] == {"PLUGIN": NAME, "REFERENCE": LIBRARY}
    assert {f"engine-{NAME}-cpu", f"prep-{NAME}"} <= set(bake["group"]["cpu"]["targets"])
    assert f"engine-{NAME}-cuda" in bake["group"]["default"]["targets"]


@pytest.mark.soak
def test_it_is_in_the_documentation(followed: Followed) -> None:
    (row,) = (line for line in (followed.root / "docs/plugins.md").read_text().splitlines() if NAME in line)
    assert "`PassageVectorsPluginModel`" in row
    document = json.loads((followed.root / "docs" / "openapi" / f"{NAME}.json").read_text())
    assert "/pooling" in document["paths"]
    page = (followed.root / "plugins/encoder_plugins/models" / NAME / "README.md").read_text()
    assert "| bfloat16 | `noise_ratio`" in page
