"""What the reference computes, for tests; runs in the reference environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb

from encoder_plugins.artifact.reference import Array, Recording
from encoder_plugins.families.vision import recording
from encoder_plugins.models.nemotron_colembed.reference import RECORDER, Mathematics


@cache
def library(checkpoint: str) -> Mathematics:
    """Return a checkpoint, loaded once."""
    return Mathematics(Path(checkpoint))


def output(checkpoint: str, case: Mapping[str, Any]) -> Array:
    """Return the rows or scores of one case."""
    with recording.calm(Path(checkpoint)):
        return recording.output(library(checkpoint), case)


def outputs(checkpoint: str, cases: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Array]]:
    """Return the rows or scores of each case, by its id and by what they are."""
    return {case["id"]: {"rows" if case["documents"] is None else "scores": output(checkpoint, case)} for case in cases}


def tokens(checkpoint: str, texts: Sequence[str], kind: str) -> list[list[int]]:
    """Return the tokens of each text."""
    found = library(checkpoint)
    inputs = [found.query_inputs(text) if kind == "query" else found.document_inputs(text, None) for text in texts]
    return [each["input_ids"][0].tolist() for each in inputs]


def page_tokens(checkpoint: str, content: str, texts: Sequence[str | None]) -> list[list[int]]:
    """Return the tokens of an image in base64 with each text."""
    found, image = library(checkpoint), recording.opened(content)
    return [found.document_inputs(text, image)["input_ids"][0].tolist() for text in texts]


def recorded(checkpoint: str, cases: Sequence[Any], *, trust_remote_code: bool) -> Recording:
    """Return what prep records."""
    return RECORDER.record(Path(checkpoint), {}, cases, trust_remote_code=trust_remote_code)


def step_by_step(checkpoint: str, content: str, text: str) -> Array:
    """Return the rows of a page, computed layer by layer as the published code's sentences say, without transformers' forward."""
    with recording.calm(Path(checkpoint)), torch.inference_mode():
        found = library(checkpoint)
        inputs, model = found.document_inputs(text, recording.opened(content)), found._model
        language, ids = model.language_model, inputs["input_ids"]
        seen = model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"])
        place = ids[0] == model.config.image_token_id
        hidden = language.embed_tokens(ids).clone()
        hidden[0, place] = torch.cat(list(seen.pooler_output))
        positions, _ = model.get_rope_index(
            ids, mm_token_type_ids=inputs["mm_token_type_ids"], image_grid_thw=inputs["image_grid_thw"]
        )
        turned = language.rotary_emb(hidden, positions)
        for number, layer in enumerate(language.layers):
            attention, normed = layer.self_attn, layer.input_layernorm(hidden)
            query, key, value = (
                part(normed).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
                for part in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            query, key = apply_rotary_pos_emb(attention.q_norm(query), attention.k_norm(key), *turned)
            shared = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
            weights = torch.softmax(query @ key.transpose(-1, -2) * attention.head_dim**-0.5, -1)
            hidden = hidden + attention.o_proj((weights @ value).transpose(1, 2).flatten(2))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            if number < len(seen.deepstack_features):
                hidden = hidden.clone()
                hidden[0, place] += seen.deepstack_features[number]
        rows: Array = torch.nn.functional.normalize(hidden[0], dim=-1).numpy()
        return rows
