"""The examples in Python that pages have, run against a real server."""

from __future__ import annotations

import ast
import gc
import re
import warnings
from inspect import CO_COROUTINE
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PAGES = [
    *(ROOT / page for page in ("README.md", "docs/client.md", "docs/serving.md")),
    *sorted(ROOT.glob("plugins/encoder_plugins/models/*/README.md")),
]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def examples(host: str) -> list[tuple[Path, str, str]]:
    """Return the examples that call a server of this name: page, source, and the address that is called."""
    address = re.compile(rf"http://{host}\.(?:demo|search)\.svc")
    return [
        (page, block, found[0])
        for page in PAGES
        for block in _BLOCK.findall(page.read_text("utf-8"))
        if (found := address.search(block))
    ]


async def run(host: str, url: str) -> dict[str, Any]:
    """Run the examples that call a server of this name, with the address of another one; return their variables.

    Raises:
        AssertionError: There are none.
    """
    found = examples(host)
    assert found, f"no page has an example for {host}"
    variables: dict[str, Any] = {}
    with warnings.catch_warnings():
        # what fits on a page leaves its connections to the garbage collector
        warnings.simplefilter("ignore", ResourceWarning)
        for page, block, address in found:
            source = block.replace(address, url)
            code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            pending = eval(code, variables)
            if code.co_flags & CO_COROUTINE:
                await pending
        variables.pop("client", None)
        gc.collect()
    return variables
