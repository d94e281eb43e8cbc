"""Build GLiNER2 checkpoints as users publish them: with the library itself, random weights, small or at true shapes.

``build`` runs in the library's environment; everything else is importable elsewhere.

The weights are drawn as those of GLiNER are; the head is scaled so that a chosen share of all pairs of span and query is above 0.5, with
others close to it on both sides, that predicted counts differ from text to text, and that labels of classifications are likely and not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Literal

import torch

from encoder_checkpoints import vocabularies
from encoder_checkpoints.gliner_builder import LARGE_BYTES, SPREAD, _draw, _quiet, _threads
from encoder_checkpoints.gliner_families import FAMILIES

COUNTING_LAYERS = ("count_lstm", "count_lstm_v2", "count_lstm_moe")
# the encoders and vocabularies are those of GLiNER's checkpoints
SHAPES: Mapping[str, str] = MappingProxyType({"tiny": "tiny", "base": "small", "large": "large"})
# the small DeBERTa-v3 is the base one with half of its layers
ENCODERS: Mapping[str, Mapping[str, Any]] = MappingProxyType({"base": {"num_hidden_layers": 12}})
SHARE = {"tiny": 0.03, "base": 0.001, "large": 0.001}
# counts from 1 to this are as likely as each other, others rarer
COMMON_COUNT = 4
SCHEMA: dict[str, Any] = {
    "entities": ["person", "company", "city"],
    "relations": ["works for"],
    "structures": {"event": {"fields": [{"name": "who", "dtype": "str"}, {"name": "where", "dtype": "list"}]}},
    "classifications": [{"task": "topic", "labels": ["sport", "money", "travel"]}],
}


def build(
    folder: Path,
    shape: str = "tiny",
    *,
    counting_layer: str = "count_lstm_v2",
    seed: int = 0,
    weights: Literal["safetensors", "pickle"] = "safetensors",
    encoder: Mapping[str, Any] | None = None,
    share: float | None = None,
    **overrides: Any,
) -> Path:
    """Write a checkpoint as it is published: config.json, encoder_config, weights, tokenizer.

    Args:
        folder: Where to; made if it is not there.
        shape: `tiny`, or a true one.
        counting_layer: One of `COUNTING_LAYERS`.
        seed: Of the weights.
        weights: As `model.safetensors`, or as `pytorch_model.bin`.
        encoder: Replaces parts of the encoder's configuration.
        share: Replaces the shape's share of pairs above 0.5.
        overrides: Replace parts of config.json.

    Returns:
        ``folder``.
    """
    from gliner2.configuration import ExtractorConfig
    from gliner2.inference.engine import GLiNER2
    from safetensors.torch import load_file
    from transformers import AutoTokenizer, DebertaV2Config

    family = FAMILIES["deberta_gliner"]
    size = family.shapes[SHAPES[shape]]
    with TemporaryDirectory() as temporary, _quiet(), _threads(1 if shape == "tiny" else torch.get_num_threads()):
        base = Path(temporary) / "base"
        tokenizer, about = family.tokenizer(size.vocabulary)
        vocabularies.write(base, tokenizer, about)
        fields = {
            **family.encoder,
            **size.encoder,
            **ENCODERS.get(shape, {}),
            **(encoder or {}),
            "vocab_size": size.vocabulary,
        }
        config = ExtractorConfig(model_name="example/deberta-v3", counting_layer=counting_layer, max_width=8)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = GLiNER2(
                config,
                encoder_config=DebertaV2Config(**fields),
                tokenizer=AutoTokenizer.from_pretrained(base),
            ).eval()
            _draw(model.encoder)
        _calibrate(model, SHARE[shape] if share is None else share)
        if sum(parameter.numel() * 4 for parameter in model.parameters()) > LARGE_BYTES:
            model.to(torch.bfloat16)
        model.save_pretrained(str(folder))
        if weights == "pickle":
            path = folder / "model.safetensors"
            torch.save(load_file(path), folder / "pytorch_model.bin")
            path.unlink()
        path = folder / "config.json"
        published = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**published, **overrides}, indent=2, sort_keys=True), encoding="utf-8")
    return folder


@torch.no_grad()
def _calibrate(model: Any, share: float) -> None:
    """Scale and shift the head; see the module.

    One dimension of spans and queries is set aside for the shift: constant in both, so that it moves every logit alike.
    """
    tokens, parts, fields, labels = _rows(model)
    markers = model.span_rep.span_rep_layer.out_project[3]
    weight, bias = _last(model.count_embed)
    weight[..., 0] = 0.0
    bias[..., 0] = 0.0
    markers.weight[0] = 0.0
    markers.bias[0] = 0.0
    queries = torch.cat([model.count_embed(embeddings, 5).flatten(0, 1) for embeddings in fields])
    bias -= queries.mean(0)
    found = model.compute_span_rep_batched(tokens)
    spans = torch.cat([one["span_rep"].flatten(0, 1) for one in found])
    markers.bias -= spans.mean(0)
    logits = (spans - spans.mean(0)) @ (queries - queries.mean(0)).T
    factor = SPREAD / logits.std().item()
    weight *= factor
    bias *= factor
    sample = logits.flatten()[:: max(1, logits.numel() // 100_000)] * factor
    shift = torch.quantile(sample, 1 - share).item()
    # in both signs: the shift is the product of both
    markers.bias[0] = -shift / abs(shift or 1.0) * abs(shift) ** 0.5
    bias[..., 0] = abs(shift) ** 0.5
    for layer, rows in ((model.count_pred, parts), (model.classifier, labels)):
        outer = layer[-1]
        values = layer(rows)
        spread = SPREAD / (values - values.mean(0)).std().item()
        outer.weight *= spread
        outer.bias.copy_((outer.bias - values.mean(0)) * spread)
    model.count_pred[-1].bias[0] -= SPREAD
    model.count_pred[-1].bias[COMMON_COUNT + 1 :] -= 2 * SPREAD


def _last(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weight and bias of the last layer of a counting layer; the weight's last dimension is that of its output."""
    if hasattr(layer, "w2"):
        return layer.w2.data, layer.b2.data
    last = layer.projector[-1] if hasattr(layer, "projector") else layer.transformer.out_projector[-1]
    return last.weight.data.T, last.bias.data


def _rows(model: Any) -> tuple[list[torch.Tensor], torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """Return what the encoder gives for some texts: words, rows of tasks, fields of each task, rows of labels."""
    from gliner2.inference.schema import Schema

    seen: list[tuple[Any, list[torch.Tensor], list[list[list[torch.Tensor]]]]] = []
    compute = model._compute_direct_span_logits_batched

    def keep(batch: Any, tokens: Any, schemas: Any) -> Any:
        seen.append((batch, tokens, schemas))
        return compute(batch, tokens, schemas)

    model._compute_direct_span_logits_batched = keep
    try:
        model.batch_extract(list(vocabularies.SENTENCES), Schema.from_dict(SCHEMA))
    finally:
        del model._compute_direct_span_logits_batched
    words, parts, fields, labels = [], [], [], []
    for batch, tokens, schemas in seen:
        words += tokens
        for kinds, tasks in zip(batch.task_types, schemas, strict=True):
            for kind, (part, *marks) in zip(kinds, tasks, strict=True):
                if kind == "classifications":
                    labels += marks
                else:
                    parts.append(part)
                    fields.append(torch.stack(marks))
    return words, torch.stack(parts), fields, torch.stack(labels)
