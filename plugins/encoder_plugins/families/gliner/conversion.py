"""Turns a GLiNER checkpoint into the model folder of an artifact, with the library's own code where that decides.

Imports torch, transformers and gliner: runs in the prep image only. What it writes is sound for the engine, which reads
config.json, and for the library itself, which reads gliner_config.json when the reference is recorded.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from gliner.config import UniEncoderSpanConfig
from gliner.model import UniEncoderSpanGLiNER
from gliner.modeling.base import UniEncoderSpanModel
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoTokenizer

from encoder_plugins.errors import SourceFileNotFound, Unsupported
from encoder_plugins.families.gliner import checkpoint
from encoder_plugins.families.gliner.checkpoint import CONFIG, WEIGHTS, Settings, Trunk
from encoder_plugins.families.gliner.config import KEY, GlinerConfig

Shape = tuple[int, ...]

EMBEDDINGS = ("embed_tokens.weight", "shared.weight", "word_embeddings.weight", "tok_embeddings.weight")
FORMATS = frozenset({"F32", "F16", "BF16"})
# tensors of older versions of transformers, or of pretraining, that the library does not load either
LEFT_BEHIND = (
    "token_rep_layer.bert_layer.model.embeddings.position_ids",
    "token_rep_layer.bert_layer.model.embeddings.position_embeddings.weight",
)
# words whose tokens are compared after the tokenizer was written
PROBE = ("Straße", "naïve", "İstanbul", "東京", "don't", "3.14", "x\u0301", "ﬁne", "😀", "a-b", "ΟΔΥΣΣΕΥΣ")


def convert(trunk: Trunk, folder: Path, auxiliary: Mapping[str, Path], target: Path) -> None:
    """Write the model folder of an artifact.

    Args:
        trunk: What the plugin serves.
        folder: The checkpoint as it was published, its weights as safetensors.
        auxiliary: Folders of the auxiliary repositories, by repository.
        target: The folder to write; it exists and is empty.

    Raises:
        SourceFileNotFound: Something is missing.
        Unsupported: Something is not served, or the pieces don't belong together.
    """
    settings = checkpoint.read(folder)
    encoder = checkpoint.encoder_config(settings, auxiliary, trunk)
    with _quiet():
        tokenizer = _tokenizer(settings, checkpoint.tokenizer_folder(settings, folder, auxiliary))
        stored, aliases = _stored(folder / WEIGHTS)
        rows = _rows(settings, stored)
        gliner = _gliner_config(settings, encoder, tokenizer, rows)
        values = {
            **settings.values,
            "class_token_index": gliner.class_token_id,
            "vocab_size": rows,
            "encoder_config": {**encoder, "vocab_size": rows},
        }
        wanted, ties = expected_tensors(values)
        _require(wanted, ties, stored)
        _write_tokenizer(tokenizer, target)
        _write_json(target / CONFIG, values)
        _write_json(target / "config.json", _served_config(trunk, values["encoder_config"], gliner))
        _write_weights(folder / WEIGHTS, target / WEIGHTS, wanted, ties, aliases)


def expected_tensors(values: Mapping[str, Any]) -> tuple[dict[str, Shape], dict[str, str]]:
    """Return what the library loads for a gliner_config.json: shapes by name, and other names of the same tensors.

    The library's own model says it, built without memory behind it.
    """
    # the library changes what it is given
    config = UniEncoderSpanConfig(
        **{key: value for key, value in json.loads(json.dumps(dict(values))).items() if key != "model_type"}
    )
    with torch.device("meta"):
        model = UniEncoderSpanModel(config)
    shapes: dict[str, Shape] = {}
    ties: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if (known := first.setdefault(id(tensor), name)) != name:
            ties[name] = known
        else:
            shapes[name] = tuple(tensor.shape)
    return shapes, ties


def _tokenizer(settings: Settings, folder: Path) -> Any:
    """Load the tokenizer as the library does, and add GLiNER's tokens where they are missing."""
    try:
        tokenizer = UniEncoderSpanGLiNER._load_tokenizer(
            SimpleNamespace(model_name=str(folder)), folder, local_files_only=True
        )
    except Exception as error:
        # whatever a broken tokenizer makes the libraries raise
        raise Unsupported(f"the tokenizer can't be loaded: {type(error).__name__}: {error}"[:500]) from error
    if not getattr(tokenizer, "is_fast", False):
        raise Unsupported("the tokenizer has no fast form, which prompts are built with")
    present = tokenizer.get_vocab()
    names = (checkpoint.FLERT, settings.class_token, settings.separator_token)
    missing = [name for name in names if name not in present]
    if settings.class_token in missing and settings.class_token_id is not None and checkpoint.FLERT in missing:
        # not every version of the library added the first one
        shift = settings.class_token_id - len(tokenizer) - missing.index(settings.class_token)
        missing = missing[1:] if shift == -1 else missing
    if settings.class_token in missing or settings.separator_token in missing:
        tokenizer.add_tokens(missing, special_tokens=True)
    return tokenizer


def _gliner_config(settings: Settings, encoder: Mapping[str, Any], tokenizer: Any, rows: int) -> GlinerConfig:
    """Describe the head, with ids that tokenizer and weights agree on."""
    ids = {
        name: _single(tokenizer, key, name)
        for key, name in (("ent_token", settings.class_token), ("sep_token", settings.separator_token))
    }
    class_id = ids[settings.class_token]
    if settings.class_token_id not in (None, class_id):
        raise Unsupported(
            f"{CONFIG}: class_token_index is {settings.class_token_id}, and the tokenizer has {settings.class_token!r} at"
            f" {class_id}"
        )
    largest = max(tokenizer.get_vocab().values())
    if largest >= rows:
        raise Unsupported(f"the tokenizer has ids up to {largest}, and the embedding only {rows} rows")
    width = CONFIG_MAPPING[encoder["model_type"]](**dict(encoder)).hidden_size
    return GlinerConfig(
        hidden_size=settings.hidden_size,
        max_width=settings.max_width,
        max_words=settings.max_words,
        class_token=settings.class_token,
        class_token_id=class_id,
        separator_token=settings.separator_token,
        separator_token_id=ids[settings.separator_token],
        embed_class_token=settings.embed_class_token,
        lstm_layers=settings.lstm_layers,
        projection=settings.hidden_size != width,
    )


def _single(tokenizer: Any, key: str, token: str) -> int:
    """Return the id of a token that the tokenizer must know as one."""
    found = tokenizer([token], is_split_into_words=True, add_special_tokens=False)["input_ids"]
    if len(found) != 1 or tokenizer.convert_ids_to_tokens(found[0]) != token:
        raise Unsupported(f"{CONFIG}: {key} is {token!r}, which the tokenizer does not know as one token: {found[:8]}")
    return int(found[0])


def _stored(path: Path) -> tuple[dict[str, Shape], dict[str, str]]:
    """Return the shapes of a file's tensors, and other names for them that the library wrote beside.

    Raises:
        SourceFileNotFound: There is no such file.
        Unsupported: It is no safetensors file, or a tensor holds no floating-point numbers.
    """
    if not path.is_file():
        raise SourceFileNotFound(f"{WEIGHTS} is missing: the library loads no other file of weights")
    shapes: dict[str, Shape] = {}
    try:
        with safe_open(path, framework="numpy") as tensors:
            metadata = tensors.metadata() or {}
            for name in tensors.keys():  # noqa: SIM118 - it is no dictionary
                part = tensors.get_slice(name)
                shapes[name] = tuple(part.get_shape())
                if part.get_dtype() not in FORMATS and name not in LEFT_BEHIND:
                    raise Unsupported(
                        f"{path.name}: {name} is {part.get_dtype()}; served: {', '.join(sorted(FORMATS))}"
                    )
    except SafetensorError as error:
        raise Unsupported(f"{path.name} is no safetensors file: {error}") from None
    return shapes, {name: kept for name, kept in metadata.items() if name not in shapes and kept in shapes}


def _rows(settings: Settings, stored: Mapping[str, Shape]) -> int:
    """Return the rows of the embedding, which the configuration must not contradict."""
    for name, shape in stored.items():
        if name.startswith("token_rep_layer.bert_layer.model.") and name.endswith(EMBEDDINGS):
            if settings.rows not in (None, shape[0]):
                raise Unsupported(f"{CONFIG}: vocab_size is {settings.rows}, and {name} has {shape[0]} rows")
            return shape[0]
    raise Unsupported(f"{WEIGHTS}: the tensor of the encoder's word embeddings is missing")


def _require(wanted: Mapping[str, Shape], ties: Mapping[str, str], stored: Mapping[str, Shape]) -> None:
    """Refuse weights that are not exactly those of the configuration."""
    if missing := wanted.keys() - stored.keys():
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise Unsupported(
            f"{WEIGHTS}: missing are {', '.join(sorted(missing)[:3])}{more}, which the configuration asks for"
        )
    if surplus := stored.keys() - wanted.keys() - ties.keys() - set(LEFT_BEHIND):
        more = f" and {len(surplus) - 3} more" if len(surplus) > 3 else ""
        raise Unsupported(f"{WEIGHTS}: there are {', '.join(sorted(surplus)[:3])}{more}, which nothing would read")
    for name, shape in wanted.items():
        if stored[name] != shape:
            raise Unsupported(
                f"{WEIGHTS}: {name} is {list(stored[name])}, and the configuration asks for {list(shape)}"
            )


def _served_config(trunk: Trunk, encoder: Mapping[str, Any], gliner: GlinerConfig) -> dict[str, Any]:
    """Return config.json: the encoder's own with every default spelled out, our architecture, and the head."""
    served: dict[str, Any] = CONFIG_MAPPING[trunk.model_type](**dict(encoder)).to_dict()
    if served.get("max_relative_positions") == -1:
        # the encoder's own number: what follows may change what it stands for
        served["max_relative_positions"] = served["max_position_embeddings"]
    if trunk.relative and not served.get("position_biased_input", False):
        served["max_position_embeddings"] = checkpoint.context(gliner.max_words)
    for name in ("dtype", "torch_dtype", "_name_or_path", "_attn_implementation"):
        served.pop(name, None)
    return {**served, **trunk.changes, "architectures": [trunk.architecture], KEY: gliner.to_dict()}


def _write_tokenizer(tokenizer: Any, target: Path) -> None:
    """Write the tokenizer so that whoever loads it gets these very steps, and none that a class brings along."""
    # what the last call before publishing left behind
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(target)
    path = target / checkpoint.TOKENIZER_CONFIG
    about = json.loads(path.read_text(encoding="utf-8"))
    # this class takes tokenizer.json as it is; the encoders' own ones rebuild parts of it
    about["tokenizer_class"] = "PreTrainedTokenizerFast"
    for name in ("auto_map", "add_bos_token", "add_eos_token", "name_or_path"):
        about.pop(name, None)
    _write_json(path, about)
    again = AutoTokenizer.from_pretrained(target, local_files_only=True)
    words = [*PROBE, "a", *tokenizer.all_special_tokens]
    before, after = (one(words, is_split_into_words=True)["input_ids"] for one in (tokenizer, again))
    if before != after:
        raise Unsupported("the tokenizer changes when it is written in its fast form")


def _write_weights(
    source: Path, target: Path, wanted: Mapping[str, Shape], ties: Mapping[str, str], aliases: Mapping[str, str]
) -> None:
    """Put the weights in place: the same file where it holds just what is wanted."""
    with safe_open(source, framework="numpy") as tensors:
        stored = set(tensors.keys())
    if stored == wanted.keys() and set(aliases) >= set(ties):
        try:
            os.link(source, target)
        except OSError:
            # volumes without hard links
            shutil.copyfile(source, target)
        return
    tensors = load_file(source)
    for name, kept in ties.items():
        if name in tensors and not torch.equal(tensors[name], tensors[kept]):
            raise Unsupported(f"{WEIGHTS}: {name} and {kept} are one tensor in the library, and differ")
    save_file({name: tensors[name] for name in wanted}, target, metadata={"format": "pt", **ties})
    # safetensors writes for its own user alone, and the engine may be another
    target.chmod(0o644)


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the libraries from warning of what is checked here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
