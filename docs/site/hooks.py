"""Hooks of mkdocs: pages that stand beside the code they describe, and links between files of the repository.

A link to a file that is no page becomes a link below the address in SOURCE_URL, or its text alone where that is not set.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
MODELS = "plugins/encoder_plugins/models"
FAMILIES = "plugins/encoder_plugins/families"
# pages outside docs/, and where they are in the site
BESIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "kernels/BENCHMARKS.md": "kernel-benchmarks.md",
    "examples/models/README.md": "examples/models.md",
    "examples/search/README.md": "examples/search.md",
    "examples/pages/README.md": "examples/pages.md",
    "examples/invoices/README.md": "examples/invoices.md",
    "examples/catalogue/README.md": "examples/catalogue.md",
}
# their pictures, which a page names as its neighbours
PICTURES = {
    "examples/pages/sizes_1.png": "examples/sizes_1.png",
    "docs/pictures/demo.svg": "docs/pictures/demo.svg",
}
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def pages(root: Path) -> dict[str, str]:
    """Return the page of the site for each file of the repository that is one."""
    plugins = {
        f"{folder}/{file.parent.name}/README.md": f"plugins/{file.parent.name}.md"
        for folder in (MODELS, FAMILIES)
        for file in (root / folder).glob("*/README.md")
    }
    files = [*(root / "docs").glob("*.md"), *(root / "docs/benchmarks").glob("*.md")]
    own = {(path := str(file.relative_to(root))): path.removeprefix("docs/") for file in files}
    return {**BESIDE, **plugins, **own}


def rewrite(text: str, source: str, known: Mapping[str, str], address: str | None) -> str:
    """Return a page's Markdown with its links as the site has them. Pure.

    Args:
        text: The Markdown.
        source: The file that it is from, relative to the repository.
        known: The pages, as `pages` returns them.
        address: Where files that are no pages can be read; None for nowhere.
    """

    def replaced(match: re.Match[str]) -> str:
        shown, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return match.group()
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if (page := known.get(file) or known.get(f"{file}/README.md")) is None:
            return f"[{shown}]({address}/{file})" if address else shown
        start = posixpath.dirname(known[source])
        return f"[{shown}]({posixpath.relpath(page, start or '.')}{'#' if anchor else ''}{anchor})"

    # in blocks of code, brackets are no links
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(replaced, part) for part in parts)


def on_config(config: Any) -> Any:
    """Add the page of each plugin to the section of models."""
    (models,) = [section["Models"] for section in config["nav"] if "Models" in section]
    models += [{Path(page).stem: page} for page in sorted(pages(ROOT).values()) if page.startswith("plugins/")]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that stand outside docs/, and their pictures."""
    for source, page in pages(ROOT).items():
        if not source.startswith("docs/"):
            files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for source, picture in PICTURES.items():
        files.append(File.generated(config, picture, content=(ROOT / source).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite the links of a page."""
    known = pages(ROOT)
    source = next(source for source, name in known.items() if name == page.file.src_uri)
    return rewrite(markdown, source, known, os.environ.get("SOURCE_URL"))
