"""Convert a GLiNER2 checkpoint into the model folder of an artifact.

Imports torch and transformers, and the modules of our backbones; not gliner2. Names and shapes of tensors come from the layouts that
the engine's model classes load with. Whether the result is right is for the reference to say, which the library computes from the
published files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, AutoTokenizer

from encoder_plugins.errors import Unsupported
from encoder_plugins.families.gliner.conversion import quiet, require, write_json, write_tokenizer, write_weights
from encoder_plugins.families.gliner2 import checkpoint
from encoder_plugins.families.gliner2.checkpoint import ENCODER_CONFIG, WEIGHTS, EncoderSpec
from encoder_plugins.families.gliner2.config import KEY, Gliner2Config
from encoder_plugins.families.gliner2.heads import layout
from encoder_plugins.families.gliner2.prompt import MARKERS, unknown_id
from encoder_plugins.plugin import resolve
from encoder_plugins.prep.checkpoint_json import for_engine
from encoder_plugins.prep.tensor_file import Header, read_header

EMBEDDINGS = f"{layout.ENCODER}embeddings.word_embeddings.weight"


def convert(spec: EncoderSpec, folder: Path, target: Path) -> None:
    """Write the model folder of an artifact.

    Args:
        spec: What the plugin serves.
        folder: The checkpoint, its weights as safetensors.
        target: The folder to write; it exists and is empty.

    Raises:
        SourceFileNotFound: Something is missing.
        Unsupported: Something is not served, or the pieces do not belong together.
    """
    config = checkpoint.read(folder)
    encoder = checkpoint.encoder_config(folder, spec)
    with quiet():
        tokenizer = _tokenizer(folder)
        header = read_header(folder, WEIGHTS, missing="the library loads weights of no other name")
        rows = _rows(header, tokenizer)
        complete = read_encoder(spec, {**encoder, "vocab_size": rows})
        expected = layout.layout(resolve(spec.layout)(complete), complete.hidden_size, config)
        require(expected, header)
        write_tokenizer(tokenizer, target)
        write_json(target / "config.json", _served_config(spec, complete, config))
        write_weights(folder / WEIGHTS, target / WEIGHTS, expected, header)


def read_encoder(spec: EncoderSpec, encoder: Mapping[str, Any]) -> Any:
    """Complete an encoder's configuration with transformers' defaults, and read it with the engine's own function.

    Raises:
        Unsupported: A field has an impossible value, or one that the engine does not compute.
    """
    try:
        complete = CONFIG_MAPPING[spec.model_type](**json.loads(json.dumps(dict(encoder))))
        found = resolve(spec.settings).read(complete)
        # a table of positions is computed when the engine loads the model, and cannot be for every choice of fields
        if index := getattr(found, "position_index", None):
            index()
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise Unsupported(f"{ENCODER_CONFIG}: {error}"[:500]) from error
    except Exception as error:
        if type(error).__module__.startswith("huggingface_hub"):
            # its validation of configurations has errors of its own, which name the field
            raise Unsupported(f"{ENCODER_CONFIG}: {' '.join(str(error).split())}"[:500]) from error
        raise
    return complete


def _tokenizer(folder: Path) -> Any:
    """Load the tokenizer as the library does; it must have the library's markers, for which the weights have rows."""
    try:
        about = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        # older checkpoints have a list, which newer versions of transformers cannot read; the library retries without it
        options: dict[str, Any] = (
            {"extra_special_tokens": {}} if isinstance(about.get("extra_special_tokens"), list) else {}
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, **options)
    except Exception as error:
        # whatever a broken tokenizer makes the libraries raise
        raise Unsupported(f"the tokenizer cannot be loaded: {type(error).__name__}: {error}"[:500]) from error
    if not getattr(tokenizer, "is_fast", False):
        raise Unsupported("the tokenizer has no fast form, which prompts are built with")
    for marker in MARKERS:
        if tokenizer.tokenize(marker) != [marker]:
            raise Unsupported(
                f"the tokenizer does not know {marker!r} as one token: the library would add it with a row of random numbers"
            )
    # the library looks up the id of each piece's text, which for what the vocabulary lacks is that of unk_token
    if (unknown := unknown_id(tokenizer.backend_tokenizer)) not in (None, tokenizer.unk_token_id):
        raise Unsupported(
            f"tokenizer_config.json: unk_token is {tokenizer.unk_token!r}, with the id {tokenizer.unk_token_id}; tokenizer.json has"
            f" {unknown} for what its vocabulary lacks"
        )
    return tokenizer


def _rows(header: Header, tokenizer: Any) -> int:
    """Return the rows of the embedding, which the tokenizer must not exceed."""
    if EMBEDDINGS not in header.shapes:
        raise Unsupported(f"{WEIGHTS}: {EMBEDDINGS} is missing")
    rows = int(header.shapes[EMBEDDINGS][0])
    if len(tokenizer) > rows:
        raise Unsupported(
            f"the tokenizer has {len(tokenizer)} entries, and {EMBEDDINGS} {rows} rows: the library would fill up with random"
            " numbers"
        )
    return rows


def _served_config(spec: EncoderSpec, encoder: Any, config: Gliner2Config) -> dict[str, Any]:
    """Return config.json: the encoder's own with every default spelled out, our architecture, and the head."""
    served: dict[str, Any] = encoder.to_dict()
    if served.get("max_relative_positions") in (-1, 0):
        # the encoder's own number: what follows may change what it stands for
        served["max_relative_positions"] = served.get("max_position_embeddings")
    if not served.get("position_biased_input", False):
        served["max_position_embeddings"] = checkpoint.CONTEXT
    for name in ("dtype", "torch_dtype", "_name_or_path", "_attn_implementation"):
        served.pop(name, None)
    return {**for_engine(served), "architectures": [spec.architecture], KEY: config.to_dict()}
