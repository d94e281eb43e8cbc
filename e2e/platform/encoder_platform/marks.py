"""What tests say about themselves with marks, for the pages that are made of it.

Tests are read, not imported: half of them need an engine or a cluster to be imported at all.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Mark(NamedTuple):
    """One mark of one test.

    Attributes:
        call: The mark, as it is written.
        file: The test's file, relative to the checkout.
        test: The test's name.
        line: Where the test is.
        soak: Whether the test takes longer than CI has time for.
    """

    call: ast.Call
    file: str
    test: str
    line: int
    soak: bool

    def link(self) -> str:
        """Return where a page of `docs` points to."""
        return f"[`{self.test}`](../{self.file}){' (`make soak`)' if self.soak else ''}"


def marks(name: str, files: Iterable[Path], root: Path) -> Iterator[Mark]:
    """Find the marks of one name, in the order of the files and of the tests in them."""
    for file in files:
        text = file.read_text(encoding="utf-8")
        if f"mark.{name}(" in text:
            yield from _of(name, ast.parse(text), file.relative_to(root).as_posix())


def _of(name: str, module: ast.Module, file: str) -> Iterator[Mark]:
    for node in ast.walk(module):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        # a test of which only some cases take long is one that CI runs
        soak = any(ast.unparse(mark) == "pytest.mark.soak" for mark in node.decorator_list)
        for call in node.decorator_list:
            if isinstance(call, ast.Call) and ast.unparse(call.func) == f"pytest.mark.{name}":
                yield Mark(call, file, node.name, node.lineno, soak)
