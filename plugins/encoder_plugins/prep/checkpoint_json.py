"""Read the JSON files of a checkpoint, and refuse by file and field what they must not hold."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from encoder_plugins.errors import SourceFileNotFound, Unsupported

_SHOWN = 200
# fields of a config.json that vLLM takes for the length of any model, the least of them; no encoder that is served has them
_LENGTHS = frozenset(
    {
        "max_seq_len",
        "max_seq_length",
        "max_sequence_length",
        "max_target_positions",
        "model_max_length",
        "n_positions",
        "seq_len",
        "seq_length",
    }
)


def read_json(folder: Path, name: str) -> Any:
    """Return the content of a JSON file.

    Args:
        folder: The checkpoint.
        name: The file's path below it.

    Raises:
        SourceFileNotFound: The file is missing.
        Unsupported: The file is not JSON.
    """
    try:
        content = (folder / name).read_bytes()
    except FileNotFoundError:
        raise SourceFileNotFound(f"{name} is missing") from None
    return parse_json(name, content)


def parse_json(name: str, content: bytes) -> Any:
    """Parse the content of the JSON file ``name``.

    Raises:
        Unsupported: It is not JSON.
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Unsupported(f"{name} is not valid JSON: {error}") from None


def read_object(folder: Path, name: str) -> dict[str, Any]:
    """Return the content of a JSON file that holds an object; raises as ``read_json``, and Unsupported for other values."""
    value = read_json(folder, name)
    if not isinstance(value, dict):
        raise Unsupported(f"{name} does not hold a JSON object")
    return value


def refusal(where: str, name: str, value: object, accepted: Collection[Any]) -> Unsupported:
    """Return the error for a field whose value is not among the accepted ones."""
    choices = ", ".join(json.dumps(choice) for choice in accepted)
    return Unsupported(f"{where}: {name} is {shown(value)}, which is not supported; supported: {choices}")


def integer(where: str, values: dict[str, Any], name: str, default: int | None = None, *, least: int = 1) -> int:
    """Return the integer in a field; ``default`` where the field is missing.

    Raises:
        Unsupported: The field is missing and has no default, or holds null, another type, or less than ``least``.
    """
    value = values.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Unsupported(f"{where}: {name} is {shown(value)}; expected an integer of at least {least}")
    return value


def shown(value: object) -> str:
    """Return a value as a message shows it."""
    return json.dumps(value, default=str)[:_SHOWN]


def for_engine(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json, or the part of one that is an encoder's, without fields that end the engine's start, and that its library does not read."""
    return {
        name: value
        for name, value in config.items()
        if name not in _LENGTHS and (name, value) != ("is_encoder_decoder", True)
    }
