"""What published checkpoints on Qwen3-VL have in common: their configuration and their image processor. Neither torch nor vLLM is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encoder_plugins.errors import Unsupported
from encoder_plugins.families.vision.published import CONFIG, check_fields, image_processor, part
from encoder_plugins.families.vision.sizes import PixelBounds
from encoder_plugins.prep.checkpoint_json import integer, refusal, shown

# those for which vLLM rotates heads by time, height and width; with linear positions its engine aborted on a CPU
ROPE_TYPES = ("default", "yarn")
# of the vision encoder, those that vLLM has by the same names as transformers
ACTIVATIONS = (
    *("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "quick_gelu"),
    *("relu", "relu2", "sigmoid", "silu", "swish", "tanh"),
)
# fields of the image processor that change pixels, with the values of Qwen3-VL
_PIXELS: Mapping[str, object] = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "resample": 3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a published checkpoint on Qwen3-VL says.

    Attributes:
        config: Its config.json.
        processor: The fields of its image processor.
        width: Numbers of a row of the language model.
        positions: Tokens of the longest prompt that the model knows.
        image_token: The token that images have.
        bounds: The sizes that images are scaled to.
    """

    config: Mapping[str, Any]
    processor: Mapping[str, Any]
    width: int
    positions: int
    image_token: int
    bounds: PixelBounds


def settings(
    folder: Path, config: dict[str, Any], *, architectures: tuple[str, ...], model_types: tuple[str, ...]
) -> Settings:
    """Check the configuration of a published checkpoint.

    Args:
        folder: Where it is.
        config: Its config.json.
        architectures: The classes of which one must be named.
        model_types: Likewise.

    Raises:
        Unsupported: It needs something that is not served; the message names file and field.
        SourceFileNotFound: A file of the format is missing.
    """
    named = config.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or named[0] not in architectures:
        raise refusal(CONFIG, "architectures", named, [[name] for name in architectures])
    if config.get("model_type") not in model_types:
        raise refusal(CONFIG, "model_type", config.get("model_type"), model_types)
    text, vision = (part(config, name, of="Qwen3-VL") for name in ("text_config", "vision_config"))
    width = integer(f"{CONFIG}: text_config", text, "hidden_size")
    if vision.get("out_hidden_size") != width:
        raise Unsupported(
            f"{CONFIG}: vision_config.out_hidden_size is {shown(vision.get('out_hidden_size'))}, and"
            f" text_config.hidden_size is {width}"
        )
    # vLLM has no other in the language model, and these in the vision encoder
    for name, values, accepted in (("text_config", text, ("silu",)), ("vision_config", vision, ACTIVATIONS)):
        if "hidden_act" in values and values["hidden_act"] not in accepted:
            raise refusal(f"{CONFIG}: {name}", "hidden_act", values["hidden_act"], accepted)
    if text.get("attention_bias"):
        # vLLM has none behind the attention, and leaves out the checkpoint's
        raise refusal(f"{CONFIG}: text_config", "attention_bias", text["attention_bias"], [False])
    for name in ("rope_parameters", "rope_scaling"):
        given = text.get(name) or {}
        kind = given.get("rope_type", given.get("type", "default")) if isinstance(given, dict) else given
        if kind not in ROPE_TYPES:
            raise refusal(f"{CONFIG}: text_config: {name}", "rope_type", kind, ROPE_TYPES)
    where, processor = image_processor(folder)
    return Settings(
        config=config,
        processor=processor,
        width=width,
        positions=integer(f"{CONFIG}: text_config", text, "max_position_embeddings"),
        image_token=integer(CONFIG, config, "image_token_id"),
        bounds=_bounds(where, processor, vision),
    )


def _bounds(where: str, processor: dict[str, Any], vision: dict[str, Any]) -> PixelBounds:
    check_fields(where, processor, _PIXELS)
    for name, of_model in (
        ("patch_size", "patch_size"),
        ("merge_size", "spatial_merge_size"),
        ("temporal_patch_size", "temporal_patch_size"),
    ):
        given, wanted = integer(where, processor, name), integer(f"{CONFIG}: vision_config", vision, of_model)
        if given != wanted:
            raise Unsupported(f"{where}: {name} is {given}, and the model's {of_model} is {wanted}")
    size = processor.get("size")
    older = {"shortest_edge": processor.get("min_pixels"), "longest_edge": processor.get("max_pixels")}
    if not isinstance(size, dict) and None in older.values():
        raise Unsupported(f"{where}: size is {shown(size)}; expected shortest_edge and longest_edge, in pixels")
    # each of the older fields counts before that of `size`
    size = {**(size or {}), **{name: value for name, value in older.items() if value is not None}}
    least, most = (integer(f"{where}: size", size, name) for name in ("shortest_edge", "longest_edge"))
    if least > most:
        raise Unsupported(f"{where}: images have {least} pixels at least, and {most} at most")
    return PixelBounds(side=integer(where, processor, "patch_size") * processor["merge_size"], least=least, most=most)
