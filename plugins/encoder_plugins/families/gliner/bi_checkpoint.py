"""Read gliner_config.json of bi-encoders, which have an encoder for texts and another one for labels.

What a single encoder's checkpoint has as well is read by ``checkpoint``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from encoder_plugins.errors import RemoteCodeRefused, SourceFileNotFound, Unsupported
from encoder_plugins.families.gliner import checkpoint
from encoder_plugins.families.gliner.checkpoint import CONFIG, ENCODER_CONFIG, TOKENIZER_CONFIG, EncoderSpec, Settings
from encoder_plugins.families.gliner.config import LABELS_TOKENIZER
from encoder_plugins.prep.checkpoint_json import integer, read_object, refusal, shown

_MODEL_TYPES = (None, "gliner", "gliner_bi_encoder", "gliner_bi_encoder_span", "gliner_bi_encoder_token")
# what is the label encoder's, and the other formats refuse
_LABELS = ("labels_encoder", "labels_encoder_config")


@dataclass(frozen=True, slots=True)
class BiSettings:
    """gliner_config.json of a bi-encoder, checked.

    Attributes:
        text: What it has in common with other checkpoints.
        labels: The configuration of the label encoder; None where it is in another repository.
        labels_base: The repository that the label encoder came from.
    """

    text: Settings
    labels: Mapping[str, Any] | None
    labels_base: str


def read(folder: Path, changes: Mapping[str, Any] = MappingProxyType({})) -> BiSettings:
    """Read and check gliner_config.json in ``folder``; arguments and errors as in ``checkpoint.read``."""
    values = {**read_object(folder, CONFIG), **changes}
    base, labels = values.get("labels_encoder"), values.get("labels_encoder_config")
    if base is None:
        raise Unsupported(
            f"{CONFIG}: labels_encoder is null: labels stand before the text; the other GLiNER plugins serve such checkpoints"
        )
    if not isinstance(base, str) or not base:
        raise Unsupported(f"{CONFIG}: labels_encoder is {shown(base)}; expected the name of a repository")
    if labels is not None and not isinstance(labels, dict):
        raise refusal(CONFIG, "labels_encoder_config", labels, ("an object", None))
    if values.get("model_type") not in _MODEL_TYPES:
        raise refusal(CONFIG, "model_type", values["model_type"], _MODEL_TYPES)
    # with two encoders the library makes an LSTM of any number of layers but 0
    integer(CONFIG, values, "num_rnn_layers", 1, least=0)
    text = checkpoint.parse({name: value for name, value in values.items() if name not in {*_LABELS, "model_type"}})
    checkpoint.check_kind(values.get("model_type"), "gliner_bi_encoder", text.head)
    return BiSettings(text, labels, base)


def spec_of(settings: BiSettings, auxiliary: Mapping[str, Path], specs: Sequence[EncoderSpec]) -> EncoderSpec:
    """Return the one of a plugin's encoders that a checkpoint has.

    Raises:
        SourceFileNotFound: The encoder's configuration is in a repository that is not among ``auxiliary``.
        Unsupported: It has none of them, or another head.
    """
    where, found = checkpoint.published_encoder(settings.text, auxiliary)
    for spec in specs:
        if found.get("model_type") == spec.model_type and settings.text.head in spec.heads:
            return spec
    served = ", ".join(
        f"{shown(spec.model_type)} with {shown(checkpoint.SPAN_MODES[head])}" for spec in specs for head in spec.heads
    )
    raise Unsupported(
        f"{where}.model_type is {shown(found.get('model_type'))} with span_mode"
        f" {shown(checkpoint.SPAN_MODES[settings.text.head])}; {specs[0].plugin} serves {served}"
    )


def labels_config(settings: BiSettings, auxiliary: Mapping[str, Path], spec: EncoderSpec) -> dict[str, Any]:
    """Return the label encoder's own configuration, checked.

    Raises:
        SourceFileNotFound: It is in a repository that is not among ``auxiliary``.
        Unsupported: It is of another family, or a field has a value that is not served.
    """
    if settings.labels is not None:
        where, found = f"{CONFIG}: labels_encoder_config", dict(settings.labels)
        # as the library takes it
        found.setdefault("model_type", "deberta-v2")
    else:
        folder = _labels_folder(settings, auxiliary, "no labels_encoder_config")
        where, found = f"{settings.labels_base}: {ENCODER_CONFIG}", read_object(folder, ENCODER_CONFIG)
    assert spec.labels is not None
    if found.get("model_type") != spec.labels.model_type:
        raise Unsupported(
            f"{where}.model_type is {shown(found.get('model_type'))}; {spec.plugin} serves {shown(spec.labels.model_type)}"
            f" beside an encoder of texts of type {shown(spec.model_type)}"
        )
    if found.get("auto_map"):
        raise RemoteCodeRefused(f"{where} has an auto_map, which names code of a repository; such code is never run")
    for name in ("_attn_implementation", "attn_implementation"):
        found.pop(name, None)
    return found


def labels_tokenizer_folder(settings: BiSettings, folder: Path, auxiliary: Mapping[str, Path]) -> Path:
    """Return the folder that the library takes the tokenizer of labels from: the checkpoint's own, if it has one."""
    if (folder / LABELS_TOKENIZER / TOKENIZER_CONFIG).is_file():
        return folder / LABELS_TOKENIZER
    return _labels_folder(settings, auxiliary, f"no {LABELS_TOKENIZER}/{TOKENIZER_CONFIG}")


def _labels_folder(settings: BiSettings, auxiliary: Mapping[str, Path], reason: str) -> Path:
    """Return the folder of the label encoder's repository; raises SourceFileNotFound where it is not there."""
    if settings.labels_base in auxiliary:
        return auxiliary[settings.labels_base]
    base = settings.labels_base
    raise SourceFileNotFound(
        f"the checkpoint has {reason}, and names the repository {base} for it: pin that one as well, with"
        f" source.auxiliary: [{{repo: {base}, revision: <commit>}}], or --auxiliary {base}@<commit>"
    )
