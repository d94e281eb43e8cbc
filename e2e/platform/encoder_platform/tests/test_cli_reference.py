"""The page of the command lines is made from their parsers, and the commands of other pages are those that it has."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

import pytest

from encoder_platform import cli_reference
from encoder_platform.pages import ROOT

# what a command line ends at: a comment, vLLM's own arguments, another program
_END = re.compile(r" +#| -- | \| | &$")
_COMMAND = re.compile(r"(?:^|-- )(encoder-plugins|encoder-operator|encoder-client) +([a-z][a-z-]*)(.*)")
_KUBECTL = re.compile(r"kubectl encoders(?: -n NAMESPACE)? ([a-z]+)(.*)")


def test_arguments_are_rows_whatever_the_version_of_python() -> None:
    parser = argparse.ArgumentParser(prog="one")
    parser.add_argument("file", help="a | b")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="texts, 100%% of them")
    parser.add_argument("--dtype", "-d", choices=("a", "b"), help="one (default: the best)")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long (default: %(default)s)")
    parser.add_argument("--keep", action="append", default=[], metavar="KEY", help="may be repeated")
    parser.add_argument("--quiet", action="store_true", help="print nothing")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--words", type=int, help="words (5)")
    length.add_argument("--pages", action="store_true", help="pages")
    one_of = "**required**: one of `--words`, `--pages`"
    assert list(cli_reference.arguments(parser)) == [
        ("`file`", "**required**", "a / b"),
        ("`[TEXT ...]`", "", "texts, 100% of them"),
        ("`--dtype {a,b}`", "", "one (default: the best)"),
        ("`--seconds SECONDS`", "`30`", "how long"),
        ("`--keep KEY`", "", "may be repeated"),
        ("`--quiet`", "", "print nothing"),
        ("`--words WORDS`", one_of, "words (5)"),
        ("`--pages`", one_of, "pages"),
    ]


def test_an_argument_without_help_is_refused() -> None:
    parser = argparse.ArgumentParser(prog="one")
    parser.add_argument("--port", type=int)
    with pytest.raises(ValueError, match="one: --port PORT has no help"):
        list(cli_reference.arguments(parser))


def code(name: str) -> Iterator[str]:
    """Yield the lines of the blocks of code of a page, and its code within text."""
    blocks = (ROOT / "docs" / name).read_text("utf-8").split("```")
    for number, block in enumerate(blocks):
        yield from block.splitlines() if number % 2 else re.findall(r"`([^`]+)`", block)


@pytest.mark.parametrize("name", ["troubleshooting.md", "serving.md", "preparation.md", "client.md", "sizing.md"])
def test_commands_of_the_pages_exist_with_their_options(name: str) -> None:
    known = {
        (line, command.name): {option for action in command.parser._actions for option in action.option_strings}
        for line, commands in cli_reference.command_lines().items()
        for command in commands
    }
    plugin = set(re.findall(r"^kubectl encoders ([a-z]+)", cli_reference.usage(), re.MULTILINE))
    found = 0
    for line in code(name):
        line = _END.split(line)[0] if "exec" not in line else line
        if match := _COMMAND.search(line):
            found += 1
            program, command, rest = match.groups()
            assert set(re.findall(r"--[a-z][a-z0-9-]*", rest)) <= known[program, command], line
        elif match := _KUBECTL.search(line):
            found += 1
            # options of `kubectl logs` stand behind `logs`
            assert match[1] in plugin, line
            assert match[1] == "logs" or "--" not in match[2], line
    assert found > 0
