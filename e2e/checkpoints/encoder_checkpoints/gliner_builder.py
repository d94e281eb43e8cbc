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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from tokenizers import AddedToken

from encoder_checkpoints import vocabularies
from encoder_checkpoints.gliner_families import FAMILIES, LABEL_ENTRIES_LESS

Weights = Literal["safetensors", "pickle"]

PLUGINS = ("deberta_gliner", "deberta_gliner_linker", "mmbert_gliner", "modernbert_gliner_rerank", "mt5_gliner")
# further families, by the plugin that serves them
FURTHER = {
    "gliner_bi_modernbert": "deberta_gliner_linker",
    "gliner_bi_deberta": "deberta_gliner_linker",
    "gliner_linker_spans": "deberta_gliner_linker",
    "gliner_rerank_spans": "modernbert_gliner_rerank",
}
LABELS = ("person", "company", "city", "date of birth", "sports team")
# the logits of random spans and labels have this standard deviation, as those of trained checkpoints roughly have
SPREAD = 2.0
# of pairs of word and label, those that start, end, and are inside of an entity, with scores above 0.5
WORD_SHARES = (0.4, 0.4, 0.6)
# where words only propose spans: of pairs of span and label, those with scores above 0.5; and words of the spans that this is measured on
SPAN_SHARE, SPAN_WORDS = 0.3, 6
# with weights beyond this, checkpoints are written in bfloat16
LARGE_BYTES = 1 << 30


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
        plugin: One of `PLUGINS`, or of `FURTHER`.
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
            names, described = family.labels.tokenizer(size.vocabulary - LABEL_ENTRIES_LESS)
            labels = Path(temporary) / "labels"
            vocabularies.write(labels, names, described)
            config |= {
                # nothing is added to these tokenizers, and the encoder's configuration has the rows
                "class_token_index": -1,
                "vocab_size": -1,
                "labels_encoder": str(labels),
                "labels_encoder_config": {
                    **(family.labels.encoder or encoder_config),
                    **size.labels,
                    "vocab_size": size.vocabulary - LABEL_ENTRIES_LESS,
                },
            }
        config |= gliner_overrides
        model = _model(config, seed)
        if config.get("span_mode") == "token_level":
            _calibrate_words(model, seed, inner_bias=5.0 if config.get("represent_spans") else 0.1)
            if config.get("represent_spans"):
                _calibrate_proposed(model, seed)
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
def _calibrate_words(model: Any, seed: int, *, inner_bias: float) -> None:
    """Redraw, scale and shift the head of a token-level model: logits have the requested spread, and `WORD_SHARES` of them are above 0.

    Where words only propose spans, their scores are not part of an answer: a bias of the inner layer has to be large to show in it.
    """
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
    scorer.out_mlp[0].bias *= inner_bias / 0.1
    size = model.config.hidden_size
    scorer.out_mlp[0].weight[:, size : 2 * size] *= 0.6
    (seen,) = _captured(model, last)
    factors = SPREAD / seen.std(0)
    last.weight *= factors[:, None]
    last.bias *= factors
    scaled = seen * factors
    last.bias -= torch.stack([torch.quantile(scaled[:, i], 1 - share) for i, share in enumerate(WORD_SHARES)])


@torch.no_grad()
def _calibrate_proposed(model: Any, seed: int) -> None:
    """Redraw, scale and shift the layers of proposed spans: logits have the requested spread, and `SPAN_SHARE` of them are above 0.

    The vectors of labels are the encoder's. What they have in common would outweigh how they differ, so spans have little of it.
    """
    head = model.model
    layer = head.span_rep_layer.span_rep_layer
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, parameter in layer.named_parameters():
            parameter.normal_(0.0, 0.3 if "bias" in name else 2.0 / parameter.shape[1] ** 0.5)
    words, labels = _scored(model)
    last, mean = layer.out_project[3], labels.mean(0)
    common = torch.outer(mean, mean) / (mean @ mean)
    last.weight -= 0.9 * common @ last.weight
    places = [
        (first, first + further)
        for further in range(SPAN_WORDS)
        for first in range(min(len(text) for text in words) - further)
    ]
    spans = torch.cat([layer(text[None], torch.tensor(places)[None])[0] for text in words])
    last.bias -= spans.mean(0)
    logits = (spans - spans.mean(0)) @ labels.T
    factor = SPREAD / logits.std().item()
    last.weight *= factor
    last.bias *= factor
    last.bias -= torch.quantile(logits * factor, 1 - SPAN_SHARE) * mean / (mean @ mean)


def _scored(model: Any) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return what a token-level model scores of some texts: words `[words, size]` of each, and labels `[labels, size]` of all of them."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    hook = model.model.scorer.register_forward_pre_hook(
        lambda _, given: seen.append((given[0][0].float(), given[1][0].float()))
    )
    try:
        model.inference(list(vocabularies.SENTENCES[:6]), list(LABELS), batch_size=1, threshold=0.99)
    finally:
        hook.remove()
    return [words for words, _ in seen], torch.cat([labels for _, labels in seen])


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
