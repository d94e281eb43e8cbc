"""Convert a checkpoint of GLiNER's bi-encoders into the model folder of an artifact; what others have as well is in ``conversion``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from encoder_plugins.backbones.config_checks import UnsupportedConfig
from encoder_plugins.errors import Unsupported
from encoder_plugins.families.gliner import bi_checkpoint, checkpoint, conversion
from encoder_plugins.families.gliner import words as splitter
from encoder_plugins.families.gliner.bi_checkpoint import BiSettings
from encoder_plugins.families.gliner.checkpoint import CONFIG, WEIGHTS, BackboneSpec, EncoderSpec
from encoder_plugins.families.gliner.config import LABELS_TOKENIZER, GlinerConfig, LabelEncoder
from encoder_plugins.families.gliner.heads import layout
from encoder_plugins.plugin import resolve
from encoder_plugins.prep.tensor_file import Header, read_header

# tokens of the longest label that is served; the library takes any number
MAX_LABEL_TOKENS = 512


def convert(spec: EncoderSpec, settings: BiSettings, folder: Path, auxiliary: Mapping[str, Path], target: Path) -> None:
    """Write the model folder of an artifact.

    Args:
        spec: The encoder of the checkpoint.
        settings: The checkpoint's.
        folder: Further arguments and errors as in ``conversion.convert``.
        auxiliary: As there.
        target: As there.
    """
    encoder = checkpoint.encoder_config(settings.text, auxiliary, spec)
    labels = bi_checkpoint.labels_config(settings, auxiliary, spec)
    with conversion.quiet():
        tokenizer = conversion.text_tokenizer(checkpoint.tokenizer_folder(settings.text, folder, auxiliary))
        # the library loads this one as it is
        labels_tokenizer = conversion.fast_tokenizer(bi_checkpoint.labels_tokenizer_folder(settings, folder, auxiliary))
        header = read_header(folder, WEIGHTS, missing="the library loads weights of no other name")
        # the library adds these to the tokenizer without rows in the embedding; they stand in no prompt, and no word of a text is one
        unused = (checkpoint.FLERT, settings.text.class_token, settings.text.separator_token)
        rows = _rows(header, layout.ENCODER, tokenizer, "the tokenizer", unused)
        label_rows = _rows(header, layout.LABEL_ENCODER, labels_tokenizer, "the tokenizer of labels")
        complete = conversion.read_encoder(spec, settings.text, {**encoder, "vocab_size": rows})
        label_encoder = read_label_encoder(spec, {**labels, "vocab_size": label_rows})
        size = settings.text.hidden_size
        gliner = GlinerConfig(
            hidden_size=size,
            max_width=settings.text.max_width,
            max_words=settings.text.max_words,
            lstm_layers=settings.text.lstm_layers,
            projection=size != complete.hidden_size,
            head=settings.text.head,
            represent_spans=settings.text.represent_spans,
            label_encoder=LabelEncoder(
                config=_plain(label_encoder),
                projection=size != label_encoder.hidden_size,
                max_tokens=_max_tokens(_labels(spec), label_encoder, labels_tokenizer),
            ),
        )
        expected = layout.bi_layout(
            resolve(spec.layout)(complete),
            complete.hidden_size,
            resolve(_labels(spec).layout)(label_encoder),
            label_encoder.hidden_size,
            gliner,
        )
        conversion.require(expected, header)
        conversion.write_tokenizer(tokenizer, target)
        (target / LABELS_TOKENIZER).mkdir()
        conversion.write_tokenizer(labels_tokenizer, target / LABELS_TOKENIZER, of_words=False)
        conversion.write_json(target / "config.json", conversion.served_config(spec, complete, gliner))
        conversion.write_weights(folder / WEIGHTS, target / WEIGHTS, expected, header)


def read_label_encoder(spec: EncoderSpec, labels: Mapping[str, Any]) -> Any:
    """Return the label encoder's configuration with transformers' defaults, read by the engine's own function.

    Raises:
        Unsupported: A field has an impossible value, or one that the engine does not compute.
    """
    where = f"{CONFIG}: labels_encoder_config"
    try:
        return conversion.complete_config(_labels(spec), labels, where)
    except UnsupportedConfig as error:
        # which of two encoders it is
        raise Unsupported(f"{where}: {error}") from error


def _plain(label_encoder: Any) -> dict[str, Any]:
    """Return the object of a configuration without what is not the model's."""
    values: dict[str, Any] = label_encoder.to_dict()
    for name in ("dtype", "torch_dtype", "_name_or_path", "_attn_implementation", "architectures"):
        values.pop(name, None)
    return values


def _labels(spec: EncoderSpec) -> BackboneSpec:
    assert spec.labels is not None
    return spec.labels


def _max_tokens(spec: BackboneSpec, label_encoder: Any, tokenizer: Any) -> int:
    """Return the tokens of the longest label."""
    positions = resolve(spec.settings).read(label_encoder).max_tokens
    return int(min(MAX_LABEL_TOKENS, tokenizer.model_max_length, positions or MAX_LABEL_TOKENS))


def _rows(header: Header, prefix: str, tokenizer: Any, name: str, unused: Collection[str] = ()) -> int:
    """Return the rows of an encoder's embedding, in which each of its tokenizer's ids must have one, but for ``unused`` tokens."""
    largest = max(number for token, number in tokenizer.get_vocab().items() if token not in unused)
    for token in unused:
        if splitter.split(token) == [token]:
            raise Unsupported(f"{CONFIG}: the token {token!r} is a word: texts would hold it as one")
    for tensor, shape in header.shapes.items():
        if tensor.startswith(prefix) and tensor.endswith(conversion.EMBEDDINGS):
            if largest >= shape[0]:
                raise Unsupported(f"{name} has ids up to {largest}, and {tensor} only {shape[0]} rows")
            return int(shape[0])
    raise Unsupported(f"{WEIGHTS}: the tensor of word embeddings below {prefix} is missing")
