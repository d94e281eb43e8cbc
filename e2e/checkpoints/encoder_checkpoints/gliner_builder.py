"""Build GLiNER checkpoints as users publish them: with the library itself, random weights, small or at true shapes.

``build`` runs in the library's environment; everything else is importable elsewhere.

The weights are drawn so that an error shows: no bias is 0, no norm is 1, attention is far from uniform, and the head is
scaled so that a chosen share of all pairs of span and label is above 0.5, with others close to it on both sides.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Literal

import torch
from tokenizers import AddedToken, Tokenizer

from encoder_checkpoints import vocabularies

Weights = Literal["safetensors", "pickle"]

PLUGINS = ("deberta_gliner", "deberta_gliner_linker", "mmbert_gliner", "modernbert_gliner_rerank", "mt5_gliner")
LABELS = ("person", "company", "city", "date of birth", "sports team")
# the logits of random spans and labels have this standard deviation, as those of trained checkpoints roughly have
SPREAD = 2.0
# of pairs of word and label, those that start, end, and are inside of an entity, with scores above 0.5
WORD_SHARES = (0.4, 0.4, 0.6)
# the tokenizer of labels has fewer entries, so that it cannot be taken for the other one
LABEL_ENTRIES_LESS = 100
# with weights beyond this, checkpoints are written in bfloat16
LARGE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The size of a checkpoint.

    Attributes:
        encoder: The encoder's configuration, but for what its kind fixes.
        vocabulary: Entries of the tokenizer, before GLiNER's tokens.
        rows: Rows of the embedding; 0 for as many as the tokenizer has entries.
        hidden_size: GLiNER's own width.
        max_width: Words of the longest span.
        max_words: Words taken of a text.
        share: How many of all pairs of span and label have a score above 0.5; token-level models have `WORD_SHARES`.
    """

    encoder: Mapping[str, Any] = field(default_factory=dict)
    vocabulary: int
    rows: int = 0
    hidden_size: int = 512
    max_width: int = 12
    max_words: int = 384
    share: float = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the checkpoints of a plugin have in common.

    Attributes:
        base: The repository whose encoder it was trained from, as gliner_config.json names it.
        encoder: The fixed part of the encoder's configuration.
        tokenizer: Trains its tokenizer.
        added: Tokens that GLiNER adds, in order.
        shapes: Sizes by name; `tiny` is for every day, the others are true ones.
        head: Fields of gliner_config.json that choose the head; none for spans.
        labels: What the encoder of labels has differently from that of texts, where there is one. Its tokenizer is of the same kind.
    """

    base: str
    encoder: Mapping[str, Any]
    tokenizer: Callable[[int], tuple[Tokenizer, dict[str, Any]]]
    added: tuple[str, ...]
    shapes: Mapping[str, Shape]
    head: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, Any] | None = None


def _tiny(**encoder: Any) -> Shape:
    return Shape(encoder=encoder, vocabulary=2000, hidden_size=64, max_width=6, max_words=120, share=0.05)


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "deberta_gliner": Family(
            base="example/deberta-v3",
            encoder={
                "model_type": "deberta-v2",
                "hidden_act": "gelu",
                "layer_norm_eps": 1e-7,
                "max_position_embeddings": 512,
                "max_relative_positions": -1,
                "norm_rel_ebd": "layer_norm",
                "pos_att_type": ["p2c", "c2p"],
                "position_biased_input": False,
                "position_buckets": 256,
                "relative_attention": True,
                "share_att_key": True,
                "type_vocab_size": 0,
                "pad_token_id": 0,
            },
            tokenizer=vocabularies.deberta,
            added=("[FLERT]", "<<ENT>>", "<<SEP>>"),
            shapes={
                # buckets of 32, so that short texts reach the logarithmic ones
                "tiny": _tiny(
                    hidden_size=96,
                    num_attention_heads=3,
                    num_hidden_layers=3,
                    intermediate_size=160,
                    position_buckets=32,
                    max_position_embeddings=128,
                ),
                "small": Shape(
                    encoder={
                        "hidden_size": 768,
                        "num_attention_heads": 12,
                        "num_hidden_layers": 6,
                        "intermediate_size": 3072,
                    },
                    vocabulary=128_001,
                ),
                "large": Shape(
                    encoder={
                        "hidden_size": 1024,
                        "num_attention_heads": 16,
                        "num_hidden_layers": 24,
                        "intermediate_size": 4096,
                    },
                    vocabulary=128_001,
                ),
            },
        ),
        "deberta_gliner_linker": Family(
            base="example/deberta",
            encoder={
                "model_type": "deberta",
                "hidden_act": "gelu",
                "layer_norm_eps": 1e-7,
                "max_position_embeddings": 512,
                "max_relative_positions": -1,
                "pos_att_type": ["c2p", "p2c"],
                "position_biased_input": False,
                "relative_attention": True,
                "type_vocab_size": 0,
                "pad_token_id": 0,
            },
            tokenizer=vocabularies.deberta_v1,
            added=(),
            shapes={
                # few distances, so that short texts reach beyond them
                "tiny": Shape(
                    encoder={
                        "hidden_size": 96,
                        "num_attention_heads": 3,
                        "num_hidden_layers": 3,
                        "intermediate_size": 160,
                        "max_relative_positions": 24,
                    },
                    vocabulary=2000,
                    hidden_size=96,
                    max_width=6,
                    max_words=120,
                ),
                "large": Shape(
                    encoder={
                        "hidden_size": 1024,
                        "num_attention_heads": 16,
                        "num_hidden_layers": 24,
                        "intermediate_size": 4096,
                    },
                    vocabulary=50_265,
                    hidden_size=768,
                    max_width=100,
                    max_words=512,
                ),
            },
            head={"span_mode": "token_level"},
            # of other sizes, so that no part can be taken for the other encoder's
            labels={"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2, "max_relative_positions": 8},
        ),
        "mmbert_gliner": Family(
            base="example/mmbert",
            encoder={
                "model_type": "modernbert",
                "attention_bias": False,
                "mlp_bias": False,
                "norm_bias": False,
                "hidden_activation": "gelu",
                "global_attn_every_n_layers": 3,
                "global_rope_theta": 160_000.0,
                "local_rope_theta": 160_000.0,
                "local_attention": 128,
                "max_position_embeddings": 8192,
                "norm_eps": 1e-5,
                "pad_token_id": 0,
                "bos_token_id": 2,
                "cls_token_id": 2,
                "eos_token_id": 1,
                "sep_token_id": 1,
            },
            tokenizer=vocabularies.mmbert,
            added=("<<ENT>>", "<<SEP>>"),
            shapes={
                # windows of 32, so that short texts reach beyond them
                "tiny": _tiny(
                    hidden_size=64,
                    num_attention_heads=2,
                    num_hidden_layers=3,
                    intermediate_size=96,
                    local_attention=32,
                    max_position_embeddings=2048,
                    global_attn_every_n_layers=2,
                ),
                "base": Shape(
                    encoder={
                        "hidden_size": 768,
                        "num_attention_heads": 12,
                        "num_hidden_layers": 22,
                        "intermediate_size": 1152,
                    },
                    vocabulary=256_000,
                    hidden_size=768,
                    max_words=2048,
                ),
            },
        ),
        "modernbert_gliner_rerank": Family(
            base="example/ettin",
            encoder={
                "model_type": "modernbert",
                "attention_bias": False,
                "mlp_bias": False,
                "norm_bias": False,
                "hidden_activation": "gelu",
                "global_attn_every_n_layers": 3,
                "global_rope_theta": 160_000.0,
                "local_rope_theta": 160_000.0,
                "local_attention": 128,
                "max_position_embeddings": 8192,
                "norm_eps": 1e-5,
                "pad_token_id": 0,
                "bos_token_id": 2,
                "cls_token_id": 2,
                "eos_token_id": 1,
                "sep_token_id": 1,
            },
            tokenizer=vocabularies.mmbert,
            added=("<<ENT>>", "<<SEP>>"),
            shapes={
                # windows of 32, so that short texts reach beyond them
                "tiny": _tiny(
                    hidden_size=96,
                    num_attention_heads=3,
                    num_hidden_layers=3,
                    intermediate_size=96,
                    local_attention=32,
                    max_position_embeddings=2048,
                    global_attn_every_n_layers=2,
                ),
                "small": Shape(
                    encoder={
                        "hidden_size": 512,
                        "num_attention_heads": 8,
                        "num_hidden_layers": 19,
                        "intermediate_size": 768,
                    },
                    vocabulary=50_368,
                    hidden_size=768,
                    max_words=2048,
                ),
            },
            head={"span_mode": "token_level"},
        ),
        "mt5_gliner": Family(
            base="example/mt5",
            encoder={
                "model_type": "mt5",
                "feed_forward_proj": "gated-gelu",
                "layer_norm_epsilon": 1e-6,
                "relative_attention_max_distance": 128,
                "relative_attention_num_buckets": 32,
                "tie_word_embeddings": False,
                "num_decoder_layers": 0,
                "pad_token_id": 0,
                "eos_token_id": 1,
                "decoder_start_token_id": 0,
            },
            tokenizer=vocabularies.mt5,
            added=("<<ENT>>", "<<SEP>>"),
            shapes={
                "tiny": _tiny(d_model=64, num_heads=4, d_kv=32, num_layers=2, d_ff=96),
                "xl": Shape(
                    encoder={"d_model": 1024, "num_heads": 16, "d_kv": 64, "num_layers": 24, "d_ff": 2816},
                    vocabulary=250_100,
                    rows=250_112,
                    hidden_size=1024,
                    max_words=1024,
                ),
            },
        ),
    }
)


def build_cached(folder: Path, plugin: str, shape: str, *, auxiliary: bool, **options: Any) -> None:
    """Write a checkpoint to ``checkpoint`` below ``folder``, and what is left out of it to ``auxiliary``."""
    build(folder / "checkpoint", plugin, shape, auxiliary=folder / "auxiliary" if auxiliary else None, **options)


def build(
    folder: Path,
    plugin: str,
    shape: str = "tiny",
    *,
    seed: int = 0,
    weights: Weights = "safetensors",
    auxiliary: Path | None = None,
    encoder: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    share: float | None = None,
    **gliner_overrides: Any,
) -> Path:
    """Write a checkpoint as it is published: gliner_config.json, weights, tokenizer.

    Args:
        folder: Where to; made if it is not there.
        plugin: One of `PLUGINS`.
        shape: A size of that plugin's family: `tiny`, or a true one.
        seed: Of the weights.
        weights: As `model.safetensors`, or as `pytorch_model.bin`.
        auxiliary: A folder that gets the encoder's configuration and the tokenizer without GLiNER's tokens. The checkpoint
            then has neither, as the oldest published ones, names that repository only, and leaves ids to the library.
        encoder: Replaces parts of the encoder's configuration.
        dtype: Dtype of the weights, as torch names it; by default float32, and bfloat16 for large ones.
        share: Replaces the shape's share of pairs above 0.5.
        gliner_overrides: Replace parts of gliner_config.json.

    Returns:
        ``folder``.
    """
    family = FAMILIES[plugin]
    size = family.shapes[shape]
    with TemporaryDirectory() as temporary, _quiet(), _threads(1 if shape == "tiny" else torch.get_num_threads()):
        base = Path(temporary) / "base"
        tokenizer, about = family.tokenizer(size.vocabulary)
        vocabularies.write(base, tokenizer, about)
        encoder_config = {**family.encoder, **size.encoder, **(encoder or {}), "vocab_size": size.vocabulary}
        (base / "config.json").write_text(json.dumps(encoder_config, indent=2), encoding="utf-8")
        if auxiliary is not None:
            vocabularies.write(auxiliary, tokenizer, about)
            (auxiliary / "config.json").write_text(json.dumps(encoder_config, indent=2), encoding="utf-8")
        extended = Path(temporary) / "extended"
        tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in family.added])
        vocabularies.write(extended, tokenizer, about)
        entries = tokenizer.get_vocab_size()
        # the tables say what the base has; GLiNER resizes its embedding
        rows = gliner_overrides.get("vocab_size", size.rows or entries)
        config = {
            "model_name": str(extended),
            "hidden_size": size.hidden_size,
            "max_width": size.max_width,
            "max_len": size.max_words,
            "class_token_index": tokenizer.token_to_id("<<ENT>>"),
            "vocab_size": rows,
            "encoder_config": {**encoder_config, "vocab_size": rows},
            **family.head,
        }
        if family.labels is not None:
            names, described = family.tokenizer(size.vocabulary - LABEL_ENTRIES_LESS)
            labels = Path(temporary) / "labels"
            vocabularies.write(labels, names, described)
            config |= {
                # nothing is added to these tokenizers, and the encoder's configuration has the rows
                "class_token_index": -1,
                "vocab_size": -1,
                "labels_encoder": str(labels),
                "labels_encoder_config": {
                    **encoder_config,
                    **(family.labels if shape == "tiny" else {}),
                    "vocab_size": size.vocabulary - LABEL_ENTRIES_LESS,
                },
            }
        model = _model({**config, **gliner_overrides}, seed)
        if config.get("span_mode") == "token_level":
            _calibrate_words(model, seed)
        else:
            _calibrate(model, size.share if share is None else share)
        _save(model, folder, weights, dtype)
        _publish_config(folder, family.base, keep_encoder=auxiliary is None)
        if auxiliary is not None:
            for path in folder.iterdir():
                if path.name not in {"gliner_config.json", "model.safetensors", "pytorch_model.bin"}:
                    path.unlink()
    return folder


def _model(config: Mapping[str, Any], seed: int) -> Any:
    """Build the library's model, with weights of our own drawing."""
    from gliner import GLiNER

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GLiNER.from_config(json.loads(json.dumps(config)), backbone_from_pretrained=False)
        layer = model.model.token_rep_layer
        _draw(layer.bert_layer.model)
        if hasattr(layer, "labels_encoder"):
            _draw(layer.labels_encoder.model)
    return model.eval()


@torch.no_grad()
def _draw(encoder: torch.nn.Module) -> None:
    """Redraw what initialisers leave too tame to show an error."""
    for name, parameter in encoder.named_parameters():
        if parameter.dim() == 1:
            # a norm's weight, or any bias
            parameter.normal_(0.0 if name.endswith("bias") else 1.0, 0.1)
        elif name.endswith("relative_attention_bias.weight"):
            parameter.normal_(0.0, 1.0)
        elif not _embeds(name):
            # products keep the size of their input, so that scores of attention are around 1
            gain = 0.125 if name.endswith("SelfAttention.q.weight") else 1.0
            parameter.normal_(0.0, 1.2 * gain / parameter.shape[1] ** 0.5)
        elif "rel_embeddings" in name:
            parameter.normal_(0.0, 1.0)


def _embeds(name: str) -> bool:
    return any(part in name for part in ("shared", "embed_tokens", "embeddings"))


@torch.no_grad()
def _calibrate(model: Any, share: float) -> None:
    """Scale and shift the head: logits of all pairs have the requested spread, and ``share`` of them is above 0.

    One dimension of spans and labels is set aside for the shift: constant in both, so that it moves every logit alike.
    """
    head = model.model
    # the last layers of the span's and the label's MLP
    span, label = head.span_rep_layer.span_rep_layer.out_project[3], head.prompt_rep_layer[3]
    for layer in (span, label):
        layer.weight[0] = 0.0
        layer.bias[0] = 0.0
    spans, labels = _captured(model, span, label)
    for layer, seen in ((span, spans), (label, labels)):
        layer.bias -= seen.mean(0)
    logits = (spans - spans.mean(0)) @ (labels - labels.mean(0)).T
    factor = SPREAD / logits.std().item()
    label.weight *= factor
    label.bias *= factor
    shift = torch.quantile(logits * factor, 1 - share).item()
    # in both signs: the shift is the product of both
    span.bias[0] = -shift / abs(shift or 1.0) * abs(shift) ** 0.5
    label.bias[0] = abs(shift) ** 0.5


@torch.no_grad()
def _calibrate_words(model: Any, seed: int) -> None:
    """Redraw, scale and shift the head of a token-level model: logits have the requested spread, and `WORD_SHARES` of them are above 0."""
    head = model.model
    scorer, last = head.scorer, head.scorer.out_mlp[3]
    # as initialised, biases and the differences of labels outweigh those of words
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, parameter in (*head.rnn.named_parameters(), *scorer.named_parameters()):
            if "bias" in name:
                parameter.normal_(0.0, 0.1)
            else:
                parameter.normal_(0.0, 2.0 / parameter.shape[1] ** 0.5)
    size = model.config.hidden_size
    scorer.out_mlp[0].weight[:, size : 2 * size] *= 0.6
    (seen,) = _captured(model, last)
    factors = SPREAD / seen.std(0)
    last.weight *= factors[:, None]
    last.bias *= factors
    scaled = seen * factors
    last.bias -= torch.stack([torch.quantile(scaled[:, i], 1 - share) for i, share in enumerate(WORD_SHARES)])


def _captured(model: Any, *layers: torch.nn.Module) -> list[torch.Tensor]:
    """Return what layers give for some texts: `[rows, width]` each."""
    seen: dict[torch.nn.Module, list[torch.Tensor]] = {layer: [] for layer in layers}

    def keep(module: torch.nn.Module, _: Any, output: torch.Tensor) -> None:
        seen[module].append(output.flatten(0, -2).float())

    hooks = [layer.register_forward_hook(keep) for layer in seen]
    try:
        model.inference(list(vocabularies.SENTENCES[:6]), list(LABELS), batch_size=1, threshold=0.5)
    finally:
        for hook in hooks:
            hook.remove()
    return [torch.cat(seen[layer]) for layer in layers]


def _save(model: Any, folder: Path, weights: Weights, dtype: str | None) -> None:
    size = sum(parameter.numel() * 4 for parameter in model.model.parameters())
    model.model.to(getattr(torch, dtype) if dtype else torch.bfloat16 if size > LARGE_BYTES else torch.float32)
    model.save_pretrained(folder, safe_serialization=weights == "safetensors")


def _publish_config(folder: Path, base: str, *, keep_encoder: bool) -> None:
    """Name the base by its repository, and drop what the builder needed only."""
    path = folder / "gliner_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["model_name"] = base
    if config.get("labels_encoder") is not None:
        config["labels_encoder"] = f"{base}-labels"
    if not keep_encoder:
        config["encoder_config"] = None
        # the library adds its tokens only where these are open
        del config["class_token_index"], config["vocab_size"]
    path.write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Compute in so many threads: several cost more than they give where there is little to compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library from warning of what is intended, and from requests to a hub."""
    level = logging.root.manager.disable
    offline = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        if offline is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = offline
