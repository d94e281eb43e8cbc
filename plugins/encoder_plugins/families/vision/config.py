"""The part of an artifact's ``config.json`` that decides how images become prompts: written by prep, read by the processor. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from encoder_plugins.errors import Unsupported
from encoder_plugins.families.vision import sizes
from encoder_plugins.families.vision.sizes import Sizes
from encoder_plugins.prep.checkpoint_json import read_object

CONFIG = "config.json"
KEY = "visual_retrieval"


@dataclass(frozen=True, slots=True, kw_only=True)
class VisualConfig:
    """How images and queries become prompts, beside what ``families.retrieval.config`` says.

    Attributes:
        image_prompt: Token ids of an image's prompt, with one token for all of the image.
        image_token: That token.
        query_suffix: Token ids behind each query.
        document_suffix: Token ids behind each text document, and behind the text of an image.
        captions: What precedes the text of an image that has one; None where an image has no text.
        most_tokens: Tokens of a document, those of its image counted twice: what is behind is cut. None where nothing is.
        reserved: Token ids that no text may contain: the model would take them for images or turns.
        bounds: The sizes that images are scaled to.
    """

    image_prompt: tuple[int, ...]
    image_token: int
    query_suffix: tuple[int, ...]
    reserved: tuple[int, ...]
    bounds: Sizes
    document_suffix: tuple[int, ...] = ()
    captions: str | None = None
    most_tokens: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return what goes under ``visual_retrieval`` in config.json."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> VisualConfig:
        """Read what ``to_dict`` wrote; raises KeyError or TypeError where a field is missing or unknown."""
        parts = {name: tuple(values[name]) for name in ("image_prompt", "query_suffix", "reserved")}
        # earlier versions of prep did not write it
        parts["document_suffix"] = tuple(values.get("document_suffix", ()))
        return cls(**{**values, **parts, "bounds": sizes.from_dict(values["bounds"])})


def read_visual(folder: Path) -> VisualConfig:
    """Return what prep wrote into an artifact's config.json.

    Raises:
        Unsupported: The folder is not a model folder of this family.
    """
    values = read_object(folder, CONFIG).get(KEY)
    try:
        return VisualConfig.from_dict(values)  # type: ignore[arg-type]
    except (KeyError, TypeError) as error:
        raise Unsupported(f"{CONFIG}: {KEY} is not what prep writes: {error!r}; prepare the checkpoint") from error
