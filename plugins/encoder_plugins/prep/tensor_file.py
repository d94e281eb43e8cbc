"""Read the header of a safetensors file: names, shapes and dtypes of its tensors, without their data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from encoder_plugins.errors import SourceFileNotFound, Unsupported

Shape = tuple[int, ...]

FLOATS = frozenset({"F32", "F16", "BF16"})


@dataclass(frozen=True, slots=True)
class Header:
    """What a safetensors file holds.

    Attributes:
        shapes: Shape of each tensor.
        dtypes: Dtype of each tensor, as safetensors names it, e.g. ``F32``.
        metadata: The file's own strings.
    """

    shapes: dict[str, Shape]
    dtypes: dict[str, str]
    metadata: dict[str, str]


def read_header(folder: Path, name: str, *, missing: str = "it has the weights") -> Header:
    """Read the header of a file.

    Args:
        folder: The checkpoint.
        name: The file's path below it.
        missing: What the message says about a file that is missing.

    Raises:
        SourceFileNotFound: The file is missing.
        Unsupported: It is not a safetensors file.
    """
    path = folder / name
    if not path.is_file():
        raise SourceFileNotFound(f"{name} is missing: {missing}")
    shapes: dict[str, Shape] = {}
    dtypes: dict[str, str] = {}
    try:
        with safe_open(path, framework="numpy") as tensors:
            metadata = dict(tensors.metadata() or {})
            for tensor in tensors.keys():  # noqa: SIM118 - it is no dictionary
                part = tensors.get_slice(tensor)
                shapes[tensor], dtypes[tensor] = tuple(part.get_shape()), part.get_dtype()
    except SafetensorError as error:
        raise Unsupported(f"{name} is not a safetensors file: {error}") from None
    return Header(shapes, dtypes, metadata)
