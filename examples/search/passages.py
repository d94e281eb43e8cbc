"""The passages of this repository's pages: paragraphs, and lines of lists and tables. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# characters of the shortest passage
SHORTEST = 60
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
# between paragraphs, and before each line of a list or a table
BREAK = re.compile(r"\n\s*\n|\n(?=\s*[-|])")


def passages() -> Iterator[tuple[str, str]]:
    """Yield each passage of the pages, behind its page's path."""
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("plugins/**/README.md")]):
        for part in BREAK.split(CODE.sub("", page.read_text(encoding="utf-8"))):
            text = " ".join(part.split())
            if len(text) >= SHORTEST:
                yield str(page.relative_to(ROOT)), text
