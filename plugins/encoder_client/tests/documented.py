"""The examples of docs/client.md, run against a real server."""

from __future__ import annotations

import ast
import re
from inspect import CO_COROUTINE
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[3] / "docs" / "client.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def examples(host: str) -> list[str]:
    """Return the examples that call a server of this name."""
    return [block for block in _BLOCK.findall(PAGE.read_text("utf-8")) if f"http://{host}.demo.svc" in block]


async def run(host: str, url: str) -> dict[str, Any]:
    """Run the examples that call a server of this name, with the address of another one; return their variables.

    Raises:
        AssertionError: There are none.
    """
    found = examples(host)
    assert found, f"{PAGE.name} has no example for {host}"
    variables: dict[str, Any] = {}
    for block in found:
        source = block.replace(f"http://{host}.demo.svc", url)
        code = compile(source, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        pending = eval(code, variables)
        if code.co_flags & CO_COROUTINE:
            await pending
    return variables
