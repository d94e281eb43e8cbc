"""`encoder-plugins new`: write the folder of a new plugin, complete with tests, as the start for a family of your own.

The templates in ``scaffold`` are a working plugin: text vectors on a DistilBERT encoder. docs/adding-a-plugin.md explains what to
change in each file.
"""

from __future__ import annotations

import argparse
import keyword
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template

from encoder_plugins import catalog, models
from encoder_plugins.errors import BadArgument
from encoder_plugins.plugin import REQUEST_LIMITS, TEXT_LIMITS

# what the lines of the templates leave room for
LONGEST_NAME = 30
LONGEST_SUMMARY = 100

# template by the path of the file that it becomes
FILES: Mapping[str, str] = {
    "__init__.py": "declaration",
    "README.md": "page",
    "checkpoint.py": "checkpoint",
    "model.py": "model",
    "parity.py": "parity",
    "processor.py": "processor",
    "reference.py": "reference",
    "tests/sample.py": "sample",
    "tests/test_$name.py": "test_plugin",
    "tests/test_${name}_engine.py": "test_engine",
    "tests/tiny.py": "tiny",
}

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("name", help="name of the plugin: lower-case letters, digits and underscores")
    parser.add_argument("--library", required=True, help="folder of images/reference that locks the original library")
    parser.add_argument("--summary", required=True, help="one sentence for the documentation")
    parser.add_argument("--example-model", required=True, help="repository of a checkpoint to try the plugin with")


def run(arguments: argparse.Namespace) -> int:
    """Write the folder, list its files, and return 0."""
    folder = Path(models.__path__[0]) / str(arguments.name)
    files = render(arguments.name, arguments.library, arguments.summary, arguments.example_model)
    if folder.exists():
        raise BadArgument(f"{folder} exists already")
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content, encoding="utf-8")
        print(folder / path)
    return 0


def render(name: str, library: str, summary: str, example: str) -> dict[str, str]:
    """Return the files of a new plugin by their paths below its folder.

    Args:
        name: The plugin's name.
        library: The folder of its reference library.
        summary: One sentence.
        example: The repository of a checkpoint.

    Raises:
        BadArgument: An argument has a value that it cannot have.
    """
    for option, value in (("NAME", name), ("--library", library)):
        if not _NAME.fullmatch(value) or len(value) > LONGEST_NAME or keyword.iskeyword(value):
            raise BadArgument(
                f"{option} {value!r}: use lower-case letters, digits and single underscores, at most {LONGEST_NAME} characters"
            )
    if name in catalog.plugins():
        raise BadArgument(f"NAME {name!r}: there is a plugin of this name")
    if not summary.endswith(".") or len(summary) > LONGEST_SUMMARY or not _is_plain(summary):
        raise BadArgument(f"--summary {summary!r}: write one sentence of at most {LONGEST_SUMMARY} characters")
    if not _is_plain(example) or len(example) > LONGEST_SUMMARY:
        raise BadArgument(
            f"--example-model {example!r}: name a repository, e.g. sentence-transformers/all-MiniLM-L6-v2"
        )
    values = {
        "name": name,
        "camel": "".join(part.capitalize() for part in name.split("_")),
        "title": summary.removesuffix("."),
        "library": library,
        "summary": summary,
        "example": example,
        "limits": "\n".join(
            f"| `{limit.name}` | {limit.default:,} | ".replace(",", " ") + f"{limit.description} |"
            for limit in (*REQUEST_LIMITS, *TEXT_LIMITS)
        ),
    }
    templates = resources.files("encoder_plugins.cli") / "scaffold"
    return {
        Template(path).substitute(values): Template(
            (templates / f"{template}.txt").read_text(encoding="utf-8")
        ).substitute(values)
        for path, template in FILES.items()
    }


def _is_plain(text: str) -> bool:
    """Return whether a string literal and a table cell can hold ``text`` as it is."""
    return bool(text) and text.isprintable() and not set(text) & set('"\\|')
