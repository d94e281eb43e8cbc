"""The documentation as a site: every page is in it, and a link that leads nowhere is an error."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from encoder_platform.pages import ROOT

# the pages of plugins, and those that several plugins of one family share
PLUGIN_FOLDERS = ("plugins/encoder_plugins/models", "plugins/encoder_plugins/families")

pytestmark = pytest.mark.timeout(600)


def build(folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Run `make docs` for the pages of a folder."""
    # make's own variables are those of the run that these tests are a part of
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"
    }
    return subprocess.run(
        ["make", "--no-print-directory", "docs", f"SITE={site}"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_every_page_is_in_the_site(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    built = {str(page.parent.relative_to(tmp_path)) for page in tmp_path.rglob("index.html")}
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")}
    pages |= {f"benchmarks/{page.stem}" for page in (ROOT / "docs/benchmarks").glob("*.md")}
    plugins = {
        f"plugins/{page.parent.name}" for folder in PLUGIN_FOLDERS for page in (ROOT / folder).glob("*/README.md")
    }
    assert {".", *pages, *plugins} <= built
    home = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert 'href="install/"' in home
    assert 'href="plugins/mt5_gliner/"' in home
    assert "docs/install.md" not in home


def test_a_link_that_leads_nowhere_and_a_page_without_a_place_are_errors(tmp_path: Path) -> None:
    for name in ("Makefile", "mkdocs.yml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("docs", "examples", "kernels/BENCHMARKS.md", *PLUGIN_FOLDERS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    page = tmp_path / "docs" / "install.md"
    page.write_text(page.read_text(encoding="utf-8") + "\n[there](operations.md#no-such-heading)\n", encoding="utf-8")
    (tmp_path / "docs" / "lonely.md").write_text("# Lonely\n", encoding="utf-8")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "no-such-heading" in done.stderr
    assert "lonely.md" in done.stderr
