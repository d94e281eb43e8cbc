"""Several texts in one request, and tokens that are queries only: every backbone against transformers, text by text."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

with warnings.catch_warnings():
    # vLLM and transformers warn of themselves when they are imported
    warnings.simplefilter("ignore")
    from transformers import (
        DebertaV2Config,
        DebertaV2Model,
        ModernBertConfig,
        ModernBertModel,
        MT5Config,
        T5EncoderModel,
    )

    from encoder_plugins.backbones import (
        deberta_v2,
        deberta_v2_settings,
        modernbert,
        modernbert_settings,
        mt5,
        mt5_settings,
        token_marks,
    )
    from encoder_plugins.backbones.token_marks import TokenMarks

pytestmark = pytest.mark.filterwarnings("ignore")

SIZES = {"vocab_size": 211, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 96, "max_position_embeddings": 1200}
RELATIVE = {"relative_attention": True, "pos_att_type": "p2c|c2p", "position_buckets": 16, "share_att_key": True}
TOKENS = {name: 1 for name in ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")}

MODELS: dict[str, Callable[[], tuple[Any, Any, Any]]] = {
    # absolute positions show whether each text's begin at 0
    "deberta_v2": lambda: (
        DebertaV2Model(DebertaV2Config(**SIZES, **RELATIVE, position_biased_input=True)),
        deberta_v2.DebertaV2Encoder,
        deberta_v2_settings,
    ),
    # the window is narrower than the texts, and wider than their tails
    "modernbert": lambda: (
        ModernBertModel(ModernBertConfig(**SIZES, **TOKENS, pad_token_id=0, local_attention=64)),
        modernbert.ModernBertEncoder,
        modernbert_settings,
    ),
    "mt5": lambda: (
        T5EncoderModel(MT5Config(vocab_size=211, d_model=64, d_kv=32, d_ff=96, num_layers=3, num_heads=2)),
        mt5.Mt5Encoder,
        mt5_settings,
    ),
}


def expected_rows(reference: Any, ids: torch.Tensor, keys: int) -> torch.Tensor:
    """Return transformers' rows where only the first tokens are keys."""
    mask = (torch.arange(len(ids)) < keys).long()
    if isinstance(reference, DebertaV2Model):
        # its mask of two dimensions would make queries of zeros, too
        hidden = reference.embeddings(ids[None])
        square = mask[None, None, :].expand(1, len(ids), len(ids))
        rows: torch.Tensor = reference.encoder(hidden, square, return_dict=True).last_hidden_state[0]
        return rows
    found: torch.Tensor = reference(input_ids=ids[None], attention_mask=mask[None]).last_hidden_state[0]
    return found


@pytest.mark.parametrize("query_only", [False, True], ids=["all are keys", "queries only"])
@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_a_text_gets_the_rows_that_it_gets_alone(
    name: str, query_only: bool, our_attention: bool, build: Any, draw: Any, batches: Any, record_property: Any
) -> None:
    reference, encoder_class, settings = MODELS[name]()
    draw(reference)
    for parameter_name, parameter in reference.named_parameters():
        if parameter_name.endswith("SelfAttention.q.weight"):
            parameter *= 0.25
    encoder = build(encoder_class, reference.config)
    weights = {key: tensor for key, tensor in reference.state_dict().items() if "inv_freq" not in key}
    encoder.load(weights, settings.layout(reference.config))
    texts = [*batches(6, 100, 211), *batches(4, 30, 211, seed=3)]
    counts = [len(ids) for ids in texts]
    # behind their keys, texts have up to 12 tokens that are queries only
    keys = [max(1, count - 3 * number) if query_only and number % 2 else count for number, count in enumerate(counts)]
    # requests of 3, 1 and 4 texts; the two in the middle have no marks
    marks: list[TokenMarks | None] = []
    requests = []
    for first, last in ((0, 3), (3, 4), (4, 5), (5, 6), (6, 10)):
        requests.append(torch.cat(texts[first:last]))
        marked = query_only or last - first > 1
        wire = token_marks.encode(counts[first:last], keys=keys[first:last])
        marks.append(token_marks.decode(wire) if marked else None)
    separated = token_marks.of_batch(zip(map(len, requests), marks, strict=True))
    assert (separated.keys is not None) is query_only
    rows = list(torch.split(torch.cat(encoder(requests, 7, separated)), counts))
    errors = [
        float((found - expected_rows(reference, ids, seen)).abs().max())
        for found, ids, seen in zip(rows, texts, keys, strict=True)
    ]
    record_property("worst", max(errors))
    assert max(errors) <= 2e-5, errors
    together = torch.split(torch.cat(encoder(requests, 7)), counts)
    assert min(float((one - other).abs().max()) for one, other in zip(rows[:3], together[:3], strict=True)) > 0.1
