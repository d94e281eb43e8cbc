"""What a published ColQwen3 checkpoint says in its configuration. Neither torch nor vLLM is imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from encoder_plugins.families.vision import qwen3_vl
from encoder_plugins.families.vision.published import CONFIG
from encoder_plugins.prep.checkpoint_json import integer, read_object

# what the library writes, and what it reads besides
ARCHITECTURES, MODEL_TYPES = ("ColQwen3",), ("colqwen3", "qwen3_vl")
# of a row where config.json does not say
DIMENSIONS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a published checkpoint says.

    Attributes:
        backbone: What every checkpoint on Qwen3-VL does.
        dimensions: Numbers of a row.
    """

    backbone: qwen3_vl.Settings
    dimensions: int


def read(folder: Path) -> Settings:
    """Read and check the configuration of a published checkpoint.

    Raises:
        Unsupported: It needs something that is not served; the message names file and field.
        SourceFileNotFound: A file of the format is missing.
    """
    config = read_object(folder, CONFIG)
    backbone = qwen3_vl.settings(folder, config, architectures=ARCHITECTURES, model_types=MODEL_TYPES)
    return Settings(backbone=backbone, dimensions=integer(CONFIG, config, "dim", DIMENSIONS))
