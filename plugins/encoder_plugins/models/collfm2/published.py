"""What a published ColLFM2 checkpoint, and the repository of its base, say in their configuration. Neither torch nor vLLM is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encoder_plugins.backbones import lfm2_settings
from encoder_plugins.errors import SourceFileNotFound, Unsupported
from encoder_plugins.families.vision.published import CONFIG, check_fields, image_processor, part
from encoder_plugins.families.vision.sizes import Tiles, ViewBounds
from encoder_plugins.prep.checkpoint_json import integer, read_object, refusal, shown

ARCHITECTURE = "VisualColLfm2Model"
MODEL_TYPE, BASE_TYPE = "collfm2", "lfm2_vl"
# what the library assumes where config.json names no base
BASE = "LiquidAI/LFM2-VL-450M"
# of a row: the library knows no other
DIMENSIONS = 128
# fields of the image processor that change pixels, with the values of LFM2-VL
_PIXELS: Mapping[str, object] = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_pad": True,
    # the view of all of the image, behind its tiles: vLLM expects it
    "use_thumbnail": True,
    "resample": 2,
}
# what transformers' Lfm2VlImageProcessor assumes
_DEFAULTS: Mapping[str, int] = {
    "downsample_factor": 2,
    "min_tiles": 2,
    "max_tiles": 10,
    "min_image_tokens": 64,
    "max_image_tokens": 256,
    "encoder_patch_size": 16,
    "tile_size": 512,
}
# tiles beyond those have no labels in the tokenizer
MOST_TILES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a published checkpoint says.

    Attributes:
        config: The base's config.json.
        processor: The fields of its image processor.
        width: Numbers of a row before the projection.
        positions: Tokens of the longest prompt that the model knows.
        image_token: The token that images have.
        bounds: The sizes that images and their tiles are scaled to.
    """

    config: Mapping[str, Any]
    processor: Mapping[str, Any]
    width: int
    positions: int
    image_token: int
    bounds: Tiles


def read(folder: Path, auxiliary: Mapping[str, Path]) -> Settings:
    """Read and check the configuration of a published checkpoint.

    Args:
        folder: The checkpoint.
        auxiliary: Folders of the auxiliary repositories, by repository.

    Raises:
        Unsupported: It needs something that is not served; the message names file and field.
        SourceFileNotFound: A file of the format is missing, or the base's repository.
    """
    config = base_config(folder, auxiliary)
    text, vision = (part(config, name, of="LFM2-VL") for name in ("text_config", "vision_config"))
    backbone = lfm2_settings.Settings.read(text)
    if vision.get("model_type", "siglip2_vision_model") != "siglip2_vision_model":
        raise refusal(f"{CONFIG}: vision_config", "model_type", vision["model_type"], ["siglip2_vision_model"])
    if vision.get("vision_use_head", True) is not False:
        # vLLM has none, and no row depends on it
        raise refusal(f"{CONFIG}: vision_config", "vision_use_head", vision.get("vision_use_head"), [False])
    where, processor = image_processor(folder)
    return Settings(
        config=config,
        processor=processor,
        width=backbone.hidden_size,
        positions=backbone.positions,
        image_token=integer(CONFIG, config, "image_token_id", 396),
        bounds=_bounds(where, processor, config, vision),
    )


def base_config(folder: Path, auxiliary: Mapping[str, Path]) -> dict[str, Any]:
    """Return the config.json of LFM2-VL: the checkpoint's own where it is whole, else that of its base's repository.

    Raises:
        Unsupported: The checkpoint is not ColLFM2, or the base not LFM2-VL.
        SourceFileNotFound: The base's repository is not among ``auxiliary``.
    """
    return read_object(base_folder(folder, auxiliary), CONFIG)


def base_folder(folder: Path, auxiliary: Mapping[str, Path]) -> Path:
    """Return the folder whose config.json describes LFM2-VL; raises as ``base_config`` does."""
    config = read_object(folder, CONFIG)
    if config.get("model_type") != MODEL_TYPE:
        raise refusal(CONFIG, "model_type", config.get("model_type"), [MODEL_TYPE])
    if config.get("dim", DIMENSIONS) != DIMENSIONS:
        raise refusal(CONFIG, "dim", config["dim"], [DIMENSIONS])
    if "text_config" in config and "vision_config" in config:
        if auxiliary:
            raise Unsupported(f"{CONFIG} is whole: it needs no auxiliary repository: {', '.join(auxiliary)}")
        return folder
    base = config.get("base_model", BASE)
    found = auxiliary.get(base)
    if found is None and len(auxiliary) == 1:
        (found,) = auxiliary.values()
    if found is None:
        given = f"; given are {', '.join(auxiliary)}" if auxiliary else ""
        raise SourceFileNotFound(
            f"{CONFIG} has no text_config and vision_config, and names the repository {base} for them{given}: pin that one as"
            f" well, with source.auxiliary: [{{repo: {base}, revision: <commit>}}], or --auxiliary {base}@<commit>"
        )
    model_type = read_object(found, CONFIG).get("model_type")
    if model_type != BASE_TYPE:
        raise Unsupported(f"{CONFIG} of {base}: model_type is {shown(model_type)}; supported: {BASE_TYPE}")
    return found


def _bounds(where: str, processor: dict[str, Any], config: dict[str, Any], vision: dict[str, Any]) -> Tiles:
    check_fields(where, processor, _PIXELS)
    fields = {name: integer(where, processor, name, default) for name, default in _DEFAULTS.items()}
    patch, factor, tile = (fields[name] for name in ("encoder_patch_size", "downsample_factor", "tile_size"))
    for name, given, of_model, wanted in (
        ("encoder_patch_size", patch, "patch_size", integer(f"{CONFIG}: vision_config", vision, "patch_size", 16)),
        ("downsample_factor", factor, "downsample_factor", integer(CONFIG, config, "downsample_factor", 2)),
    ):
        if given != wanted:
            raise Unsupported(f"{where}: {name} is {given}, and the model's {of_model} is {wanted}")
    side = patch * factor
    if tile % side:
        raise Unsupported(f"{where}: tile_size is {tile}, which is no multiple of {side} pixels, the side of a token")
    splitting = processor.get("do_image_splitting", True)
    if not isinstance(splitting, bool):
        raise refusal(where, "do_image_splitting", splitting, [True, False])
    fewest, most = (fields["min_tiles"], fields["max_tiles"]) if splitting else (1, 1)
    # with one tile at least, the library could make an image of one tile and no view of all
    if not (fewest == most == 1 or 2 <= fewest <= most <= MOST_TILES):
        raise Unsupported(
            f"{where}: min_tiles is {fewest} and max_tiles {most}; supported: 1 and 1, or from 2 to {MOST_TILES}"
        )
    tolerance = processor.get("max_pixels_tolerance", 2.0)
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or tolerance < 1:
        raise Unsupported(f"{where}: max_pixels_tolerance is {shown(tolerance)}; expected a number of at least 1")
    least_tokens, most_tokens = fields["min_image_tokens"], fields["max_image_tokens"]
    if least_tokens > most_tokens:
        raise Unsupported(f"{where}: images have {least_tokens} tokens at least, and {most_tokens} at most")
    return Tiles(
        view=ViewBounds(side=side, least=least_tokens * side**2, most=most_tokens * side**2),
        tile=tile,
        fewest=fewest,
        most_tiles=most,
        tolerance=float(tolerance),
        patch=patch,
    )
