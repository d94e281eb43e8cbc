"""The list of denied arguments against the installed vLLM's own: a new version may bring new names, short forms, and ways to load code."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from encoder_operator import arguments

pytestmark = pytest.mark.engine

# the operator must not import vLLM
_PRINT = """
import json
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
print(json.dumps([action.option_strings for action in make_arg_parser(FlexibleArgumentParser())._actions]))
"""
# of other versions and other commands; kept, since somebody may try them
_ELSEWHERE = {"model-tag", "task"}
# they sound like it, and only choose between what vLLM itself brings
_HARMLESS = {
    "max-lora-cls-labels",
    "mm-processor-cache-gb",
    "mm-processor-cache-type",
    "mm-processor-device",
    "mm-processor-kwargs",
}


@pytest.fixture(scope="module")
def options() -> list[list[str]]:
    done = subprocess.run([sys.executable, "-c", _PRINT], capture_output=True, text=True, check=True, timeout=300)
    found: list[list[str]] = json.loads(done.stdout.strip().splitlines()[-1])
    return [names for names in found if names]


def test_every_denied_argument_is_one(options: list[list[str]]) -> None:
    known = {name.removeprefix("--") for names in options for name in names}
    assert set(arguments.DENIED) - known == _ELSEWHERE


def test_short_forms_are_denied_with_the_long_ones_and_only_those(options: list[list[str]]) -> None:
    found = {
        name.removeprefix("-"): next(other.removeprefix("--") for other in names if other.startswith("--"))
        for names in options
        for name in names
        if not name.startswith("--")
    }
    assert dict(arguments.SHORT) == {short: option for short, option in found.items() if option in arguments.DENIED}


def test_whatever_sounds_like_code_or_an_open_door_is_denied(options: list[list[str]]) -> None:
    sounds = re.compile(
        r"plugin|cls|middleware|processor|executor|class|remote-code|uds|ssl-|transfer|-host|-port|^port|url"
    )
    found = {name for names in options for name in names if name.startswith("--") and not name.startswith("--no-")}
    heard = {name.removeprefix("--") for name in found if sounds.search(name.removeprefix("--"))}
    assert {name for name in heard if not arguments.denied(f"--{name}")} == _HARMLESS & heard
    assert len(heard) > 10
