"""Reads gliner_config.json, and refuses by name and value what would be served differently from what the library computes.

Every key that decides an answer in gliner 0.2.29 is honoured or refused here; others (of training, say) are left alone, as
the library leaves them. Pure but for reading JSON files: neither torch nor transformers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from encoder_plugins.errors import RemoteCodeRefused, SourceFileNotFound, Unsupported
from encoder_plugins.families.gliner import words

CONFIG = "gliner_config.json"
ENCODER_CONFIG = "config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
WEIGHTS = "model.safetensors"
# the library adds this one, too; nothing reads it
FLERT = "[FLERT]"

# keys of which a single meaning is served, with the values that have it; what is not there has it, too
_SINGLE: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "model_type": (None, "gliner", "gliner_uni_encoder", "gliner_uni_encoder_span"),
        "span_mode": ("markerV0",),
        "words_splitter_type": (words.SPLITTER,),
        "subtoken_pooling": ("first",),
        "fuse_layers": (False, None),
        "post_fusion_schema": ("", None),
        "span_encoder_config": (None,),
        "labels_encoder": (None,),
        "labels_encoder_config": (None,),
        "labels_decoder": (None,),
        "labels_decoder_config": (None,),
        "decoder_config": (None,),
        "relations_layer": (None,),
        "triples_layer": (None,),
        "represent_spans": (False, None),
        "precomputed_prompts_mode": (False, None),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trunk:
    """What a plugin's checkpoints have as encoder.

    Attributes:
        plugin: The plugin's name, for messages.
        architecture: What config.json of the artifact names.
        model_type: The encoder's, as transformers calls it.
        fixed: Switches of the encoder's configuration of which only some values are served.
        relative: Whether positions are relative only, so that the served context is ours to choose.
        changes: What config.json says differently from the encoder's own.
    """

    plugin: str
    architecture: str
    model_type: str
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    relative: bool
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """gliner_config.json, checked.

    Attributes:
        values: The file's object, with the keys of older versions under today's names.
        hidden_size: Width of words, spans and labels.
        max_width: Words of the longest span.
        max_words: Words taken of a text.
        class_token: Stands before each label.
        class_token_id: Its id; None where it is the one that the library would give it.
        separator_token: Stands between labels and words.
        embed_class_token: Whether a label is read at its class token.
        lstm_layers: Layers of the LSTM over words.
        rows: Rows that the embedding must have; None where the tokenizer decides.
        encoder: The encoder's configuration; None where it is in another repository.
        base: The repository that the encoder came from.
    """

    values: Mapping[str, Any]
    hidden_size: int
    max_width: int
    max_words: int
    class_token: str
    class_token_id: int | None
    separator_token: str
    embed_class_token: bool
    lstm_layers: int
    rows: int | None
    encoder: Mapping[str, Any] | None
    base: str


def read(folder: Path) -> Settings:
    """Read and check gliner_config.json in ``folder``.

    Raises:
        SourceFileNotFound: It is not there.
        Unsupported: It is no JSON object, or asks for something that is not served.
    """
    return parse(read_object(folder, CONFIG))


def parse(values: Mapping[str, Any]) -> Settings:
    """Check the object of a gliner_config.json; raises as ``read``. Defaults are the library's."""
    for name, accepted in _SINGLE.items():
        if name in values and values[name] not in accepted:
            raise refusal(CONFIG, name, values[name], accepted)
    encoder = values.get("encoder_config")
    if encoder is not None and not isinstance(encoder, dict):
        raise refusal(CONFIG, "encoder_config", encoder, ("an object", None))
    class_token_id = _integer(values, "class_token_index", -1, least=-1)
    rows = _integer(values, "vocab_size", -1, least=-1)
    layers = _lstm_layers(values)
    hidden_size = _integer(values, "hidden_size", 512)
    if layers and hidden_size % 2:
        raise Unsupported(f"{CONFIG}: hidden_size is {hidden_size}; with an LSTM it must be even")
    return Settings(
        values={**values, "num_rnn_layers": layers},
        hidden_size=hidden_size,
        max_width=_integer(values, "max_width", 12),
        max_words=_integer(values, "max_len", 384),
        class_token=_text(values, "ent_token", "<<ENT>>"),
        class_token_id=None if class_token_id < 0 else class_token_id,
        separator_token=_text(values, "sep_token", "<<SEP>>"),
        embed_class_token=_truth(values, "embed_ent_token", default=True),
        lstm_layers=layers,
        # the library resizes the embedding to the tokenizer unless both are there
        rows=None if rows < 0 or class_token_id < 0 else rows,
        encoder=encoder,
        base=_text(values, "model_name", "microsoft/deberta-v3-small"),
    )


def encoder_config(settings: Settings, auxiliary: Mapping[str, Path], trunk: Trunk) -> dict[str, Any]:
    """Return the encoder's own configuration, checked.

    Args:
        settings: The checkpoint's.
        auxiliary: Folders of the auxiliary repositories, by repository.
        trunk: What the plugin serves.

    Raises:
        SourceFileNotFound: It is in a repository that is not among them.
        Unsupported: It is of another kind, or a switch has a value that is not served.
    """
    if settings.encoder is not None:
        where, found = f"{CONFIG}: encoder_config", dict(settings.encoder)
        # as the library takes it
        found.setdefault("model_type", "deberta-v2")
    else:
        folder = auxiliary_folder(settings, auxiliary, "no encoder_config")
        where, found = f"{settings.base}: {ENCODER_CONFIG}", read_object(folder, ENCODER_CONFIG)
    if found.get("model_type") != trunk.model_type:
        raise Unsupported(
            f"{where}.model_type is {found.get('model_type')!r}; {trunk.plugin} serves {trunk.model_type!r}"
        )
    if found.get("auto_map"):
        raise RemoteCodeRefused(f"{where} has an auto_map, which is code of a repository; such code is never run")
    for name, accepted in trunk.fixed.items():
        if name in found and found[name] not in accepted:
            raise refusal(where, name, found[name], accepted)
    return found


def tokenizer_folder(settings: Settings, folder: Path, auxiliary: Mapping[str, Path]) -> Path:
    """Return the folder that the library takes the tokenizer from: the checkpoint's own, if it has its configuration.

    Raises:
        SourceFileNotFound: It is in a repository that is not there.
    """
    if (folder / TOKENIZER_CONFIG).is_file():
        return folder
    return auxiliary_folder(settings, auxiliary, f"no {TOKENIZER_CONFIG}")


def auxiliary_folder(settings: Settings, auxiliary: Mapping[str, Path], reason: str) -> Path:
    """Return the folder of the encoder's repository: the one named in the checkpoint, or the only one that was given.

    Raises:
        SourceFileNotFound: It is not there; the message says what to add.
    """
    if settings.base in auxiliary:
        return auxiliary[settings.base]
    if len(auxiliary) == 1:
        return next(iter(auxiliary.values()))
    given = f"; given are {', '.join(auxiliary)}" if auxiliary else ""
    raise SourceFileNotFound(
        f"the checkpoint has {reason}, and names the repository {settings.base} for it{given}: pin that one as well, with"
        f" source.auxiliary: [{{repo: {settings.base}, revision: <commit>}}], or --auxiliary {settings.base}@<commit>"
    )


def context(max_words: int) -> int:
    """Return how many tokens are served where positions are only relative, and any number would be right.

    Four tokens for every word that is taken, which is more than ordinary text of any script needs, and 2 560 for labels: some
    five hundred of them. More would let a single request hold a step for long: attention costs its square.
    """
    return -(-(4 * max_words + 2560) // 1024) * 1024


def refusal(where: str, name: str, value: object, accepted: Collection[Any]) -> Unsupported:
    """Word the refusal of a key's value."""
    shown = json.dumps(value, default=str)[:200]
    choices = ", ".join(json.dumps(choice) for choice in accepted)
    return Unsupported(f"{where}: {name} is {shown}, which is not served; served: {choices}")


def read_object(folder: Path, name: str) -> dict[str, Any]:
    """Read a file that holds a JSON object.

    Raises:
        SourceFileNotFound: It is not there.
        Unsupported: It holds something else.
    """
    try:
        value = json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SourceFileNotFound(f"{name} is missing: the checkpoint is not in GLiNER's format") from None
    except (ValueError, RecursionError) as error:
        raise Unsupported(f"{name} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise Unsupported(f"{name} holds no JSON object")
    return value


def _lstm_layers(values: Mapping[str, Any]) -> int:
    """Read the number of LSTM layers; `has_rnn` is what it was called when there could only be one."""
    if values.get("num_rnn_layers") is not None:
        return _integer(values, "num_rnn_layers", 1, least=0)
    return int(_truth(values, "has_rnn", default=True))


def _integer(values: Mapping[str, Any], name: str, default: int, *, least: int = 1) -> int:
    value = default if values.get(name) is None else values[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Unsupported(f"{CONFIG}: {name} is {json.dumps(value)[:200]}, which is no whole number from {least} on")
    return value


def _truth(values: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = default if values.get(name) is None else values[name]
    if not isinstance(value, bool):
        raise Unsupported(f"{CONFIG}: {name} is {json.dumps(value)[:200]}, which is neither true nor false")
    return value


def _text(values: Mapping[str, Any], name: str, default: str) -> str:
    value = default if values.get(name) is None else values[name]
    if not isinstance(value, str) or not value:
        raise Unsupported(f"{CONFIG}: {name} is {json.dumps(value)[:200]}, which is no text")
    return value
