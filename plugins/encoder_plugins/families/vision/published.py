"""What published visual checkpoints have in common in their configuration. Neither torch nor vLLM is imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from encoder_plugins.errors import Unsupported
from encoder_plugins.prep.checkpoint_json import read_object, refusal, shown

CONFIG, PREPROCESSOR, PROCESSOR = "config.json", "preprocessor_config.json", "processor_config.json"


def part(config: Mapping[str, Any], name: str, *, of: str) -> dict[str, Any]:
    """Return an object of config.json; ``of`` is the model that has it, for the message.

    Raises:
        Unsupported: It is not an object.
    """
    found = config.get(name)
    if not isinstance(found, dict):
        raise Unsupported(f"{CONFIG}: {name} is {shown(found)}; expected an object, as {of} has it")
    return found


def image_processor(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the file that has the fields of the image processor, and these: of the file that transformers reads first.

    Raises:
        SourceFileNotFound: There is none.
    """
    if (folder / PROCESSOR).is_file():
        found = read_object(folder, PROCESSOR).get("image_processor")
        if isinstance(found, dict):
            return f"{PROCESSOR}: image_processor", found
    return PREPROCESSOR, read_object(folder, PREPROCESSOR)


def check_fields(where: str, processor: Mapping[str, Any], accepted: Mapping[str, object]) -> None:
    """Refuse an image processor that makes other pixels.

    Args:
        where: The file that has the fields, for messages.
        processor: The fields.
        accepted: The one value of each that is served, and the default where a field is not there.

    Raises:
        Unsupported: A field has another value.
    """
    for name, value in accepted.items():
        if processor.get(name, value) != value:
            raise refusal(where, name, processor[name], [value])
