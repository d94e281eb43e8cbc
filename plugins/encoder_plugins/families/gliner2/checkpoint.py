"""Read a GLiNER2 checkpoint's config.json and its encoder's, and refuse by field what would be served differently from the library.

Every field that decides an answer in gliner2 2.1.0 is honoured or refused here; ``max_len`` is read by nothing in the library either.
Pure but for reading JSON files: neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from encoder_plugins.errors import RemoteCodeRefused, Unsupported
from encoder_plugins.families.gliner2.config import COUNTING_LAYERS, Gliner2Config
from encoder_plugins.prep.checkpoint_json import integer, read_object, refusal, shown

CONFIG = "config.json"
ENCODER_FOLDER = "encoder_config"
ENCODER_CONFIG = f"{ENCODER_FOLDER}/config.json"
WEIGHTS = "model.safetensors"
WIDEST = 64
"""Words of the longest span that is served: candidates are counted with it."""

CONTEXT = 4096
"""Tokens that are served where positions are only relative, and any number would be right: attention costs their square."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """The encoder of a plugin's checkpoints.

    Attributes:
        plugin: The plugin's name, for messages.
        architecture: The architecture that config.json of the artifact names.
        model_type: The encoder's model type in transformers.
        settings: What reads the encoder's configuration in the engine, as ``"module:Class"``; its ``read`` raises ValueError for
            what the encoder does not compute.
        layout: The function that lists the encoder's tensors, as ``"module:function"``.
        fixed: Fields of the encoder's configuration of which only some values are served.
    """

    plugin: str
    architecture: str
    model_type: str
    settings: str
    layout: str
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


def read(folder: Path) -> Gliner2Config:
    """Read and check config.json in ``folder``.

    Raises:
        SourceFileNotFound: It is missing.
        Unsupported: It is not a JSON object, or has a value that is not served.
    """
    return parse(read_object(folder, CONFIG))


def parse(values: dict[str, Any]) -> Gliner2Config:
    """Check the object of a config.json; raises as ``read``. Defaults are the library's."""
    if values.get("model_type") not in ("extractor", None):
        raise Unsupported(
            f'{CONFIG}: model_type is {shown(values["model_type"])}; GLiNER2 checkpoints have "extractor"'
        )
    architecture = values.get("architecture") or "span"
    if architecture == "boundary":
        raise Unsupported(
            f'{CONFIG}: architecture is "boundary": this is a GLiNER2.5 checkpoint, whose heads are others, and which no plugin'
            " serves"
        )
    if architecture != "span":
        raise refusal(CONFIG, "architecture", architecture, ("span", None))
    if values.get("token_pooling") not in ("first", None):
        raise refusal(CONFIG, "token_pooling", values["token_pooling"], ("first", None))
    counting = values.get("counting_layer") or COUNTING_LAYERS[0]
    if counting not in COUNTING_LAYERS:
        raise refusal(CONFIG, "counting_layer", counting, COUNTING_LAYERS)
    head = values.get("span_head") or {}
    if not isinstance(head, dict):
        raise refusal(CONFIG, "span_head", head, ("an object", None))
    # the library builds the same layers whatever it says, and dropout is for training
    if head.get("span_mode", "markerV0") != "markerV0":
        raise refusal(CONFIG, "span_head.span_mode", head["span_mode"], ("markerV0",))
    # the library takes the one of span_head where both are there
    where = {"max_width": head["max_width"]} if "max_width" in head else values
    width = 8 if where.get("max_width") is None else integer(CONFIG, where, "max_width", 8)
    if width > WIDEST:
        raise Unsupported(f"{CONFIG}: max_width is {width}; supported: up to {WIDEST}")
    return Gliner2Config(max_width=width, counting_layer=counting)


def encoder_config(folder: Path, spec: EncoderSpec) -> dict[str, Any]:
    """Return the encoder's own configuration, checked.

    Raises:
        SourceFileNotFound: It is missing: the library has no other place for it.
        Unsupported: It is of another family, or a field has a value that is not served.
    """
    found = read_object(folder, ENCODER_CONFIG)
    if found.get("model_type") != spec.model_type:
        raise Unsupported(
            f"{ENCODER_CONFIG}: model_type is {shown(found.get('model_type'))}; {spec.plugin} serves {shown(spec.model_type)}"
        )
    if found.get("auto_map"):
        raise RemoteCodeRefused(
            f"{ENCODER_CONFIG} has an auto_map, which names code of a repository; such code is never run"
        )
    for name, accepted in spec.fixed.items():
        if name in found and found[name] not in accepted:
            raise refusal(ENCODER_CONFIG, name, found[name], accepted)
    # a choice among implementations of the same function
    for name in ("_attn_implementation", "attn_implementation"):
        found.pop(name, None)
    return found
