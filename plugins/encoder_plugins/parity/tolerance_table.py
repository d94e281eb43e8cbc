"""Write the tolerances of each plugin on its page, or that of its family: ``python -m encoder_plugins.parity.tolerance_table [--check]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import encoder_plugins
from encoder_plugins import catalog, models
from encoder_plugins.parity.protocol import Parity, Tolerance
from encoder_plugins.plugin import Plugin, resolve

BEGIN, END = "<!-- tolerances: written by `make generate` -->", "<!-- end of tolerances -->"


def table(tolerances: Mapping[str, Tolerance]) -> str:
    """Return the thresholds of every dtype as a table in Markdown."""
    lines = ["| dtype | metric | limit | why |", "|---|---|---|---|"]
    for dtype, thresholds in tolerances.items():
        for threshold in thresholds:
            comparison = "at least" if threshold.at_least == threshold.limit else "at most"
            label = (threshold.label or threshold.metric).replace("|", "\\|")
            lines.append(
                f"| {dtype} | `{threshold.metric}`: {label} | {comparison} {threshold.limit:g} | {threshold.reason} |"
            )
    return "\n".join(lines)


def rendered(page: str, tolerances: Mapping[str, Tolerance]) -> str:
    """Return a page with the table of ``tolerances`` between its markers.

    Raises:
        ValueError: The page has no markers.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{table(tolerances)}\n{END}{after}"


def page(plugin: Plugin) -> Path:
    """Return the page with a plugin's tolerances and limits: that of its family, if it has one, or else its own."""
    *package, _ = plugin.parity.partition(":")[0].split(".")[1:]
    shared = Path(encoder_plugins.__path__[0]).joinpath(*package, "README.md")
    return shared if shared.exists() else Path(models.__path__[0]) / plugin.name / "README.md"


def pages() -> Iterator[tuple[Path, str]]:
    """Yield the path of each page with tolerances, and what it should hold."""
    parities: dict[Path, Parity] = {page(plugin): resolve(plugin.parity) for plugin in catalog.plugins().values()}
    for path, parity in parities.items():
        yield path, rendered(path.read_text(encoding="utf-8"), parity.tolerances)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or report those that are out of date."""
    parser = argparse.ArgumentParser(prog="python -m encoder_plugins.parity.tolerance_table", description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    check = parser.parse_args(arguments).check
    stale = [(path, text) for path, text in pages() if path.read_text(encoding="utf-8") != text]
    for path, text in stale:
        if check:
            print(f"{path} is out of date: run `make generate`", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
