"""The examples that pages have, in Python and for a shell, run against a real server."""

from __future__ import annotations

import ast
import asyncio
import gc
import re
import shlex
import subprocess
import sys
import warnings
from inspect import CO_COROUTINE
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[3]
PAGES = [
    *(ROOT / page for page in ("README.md", "docs/client.md", "docs/serving.md")),
    *sorted(ROOT.glob("plugins/encoder_plugins/models/*/README.md")),
]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# what a block shows behind a command is its answer, shortened
_COMMANDS = re.compile(r"^```\n((?:curl|printf) .*?)^(?:\{.*?)?```", re.MULTILINE | re.DOTALL)
# `curl` is this interpreter, so that no test needs a program that Python does not bring
_SHELL = f"""
set -euo pipefail
curl() {{ {shlex.quote(sys.executable)} -m encoder_client.tests.posting "$@"; }}
"""


def _address(host: str) -> re.Pattern[str]:
    return re.compile(rf"http://{host}\.(?:demo|search)\.svc")


def blocks(page: Path) -> list[str]:
    """Return the examples in Python that a page has."""
    return _BLOCK.findall(page.read_text("utf-8"))


def examples(host: str) -> list[tuple[Path, str, str]]:
    """Return the examples that call a server of this name: page, source, and the address that is called."""
    address = _address(host)
    return [(page, block, found[0]) for page in PAGES for block in blocks(page) if (found := address.search(block))]


async def run(host: str, url: str, page: Path) -> dict[str, Any]:
    """Run the examples that call a server of this name, with the address of another one; return the variables of those in Python.

    Args:
        host: The name of the server in the examples.
        url: The address of the server that is there.
        page: The page of its plugin, whose commands are typed into a shell, too. Files are those of the working directory.

    Raises:
        AssertionError: There are none, or a command fails.
    """
    await asyncio.to_thread(_type, host, url, page)
    found = examples(host)
    assert found, f"no page has an example for {host}"
    variables: dict[str, Any] = {}
    with warnings.catch_warnings():
        # what fits on a page leaves its connections to the garbage collector
        warnings.simplefilter("ignore", ResourceWarning)
        for file, block, address in found:
            source = block.replace(address, url)
            code = compile(source, str(file), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            pending = eval(code, variables)
            if code.co_flags & CO_COROUTINE:
                await pending
        variables.pop("client", None)
        gc.collect()
    return variables


def _type(host: str, url: str, page: Path) -> None:
    """Type a page's commands into a shell."""
    served = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    address = _address(host)
    found = [block for block in _COMMANDS.findall(page.read_text("utf-8")) if address.search(block)]
    assert found, f"{page} has no command for {host}"
    for block in found:
        named = block.replace(f'"model": "{host}"', f'"model": "{served}"')
        done = subprocess.run(["bash", "-c", _SHELL + address.sub(url, named)], capture_output=True, text=True)
        assert done.returncode == 0, f"{page}: {block}{done.stderr}{done.stdout[:2000]}"
