"""Which encoders are served, and under which names. Neither torch nor vLLM is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from encoder_plugins.backbones import modernbert_settings, post_norm_settings
from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout
from encoder_plugins.models.sentence_transformer import vllm_encoders


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """How an architecture of published checkpoints is served.

    Attributes:
        architecture: The architecture in the artifact.
        layout: The tensors that the engine loads; refuses a configuration that it would compute something else for.
        prefix: What the names of the encoder's tensors may begin with, beside a head that the library leaves out; empty for
            none.
        read: The engine's own reader of the configuration; None for an encoder of vLLM's.
    """

    architecture: str
    layout: Callable[[Any], CheckpointLayout]
    prefix: str = ""
    read: Callable[[Any], Any] | None = None


def _encoders() -> dict[str, Encoder]:
    """Return the encoders by the architecture that config.json names; each was compared with the library, see the tests."""
    found = {
        name: Encoder(architecture=name, layout=layout, prefix="model.")
        for name, layout in (
            ("Gemma3TextModel", vllm_encoders.gemma3_layout),
            ("Qwen3ForCausalLM", vllm_encoders.qwen3_layout),
            ("Qwen3Model", vllm_encoders.qwen3_layout),
        )
    }
    bert = Encoder(
        architecture="SentenceBertModel", read=post_norm_settings.read_bert, layout=post_norm_settings.bert_layout
    )
    ours = {
        "BertModel": bert,
        "RobertaModel": bert,
        "XLMRobertaModel": bert,
        "DistilBertModel": Encoder(
            architecture="SentenceDistilBertModel",
            read=post_norm_settings.read_distilbert,
            layout=post_norm_settings.distilbert_layout,
        ),
        "MPNetModel": Encoder(
            architecture="SentenceMPNetModel",
            read=post_norm_settings.read_mpnet,
            layout=post_norm_settings.mpnet_layout,
        ),
        "ModernBertModel": Encoder(
            architecture="SentenceModernBertModel",
            read=modernbert_settings.Settings.read,
            layout=modernbert_settings.layout,
        ),
    }
    # an artifact's config.json names the engine's class
    found |= ours | {encoder.architecture: encoder for encoder in ours.values()}
    # with a head for masked words, as pretrained checkpoints have it
    for name, encoder, prefix in (
        ("BertForMaskedLM", "BertModel", "bert."),
        ("DistilBertForMaskedLM", "DistilBertModel", "distilbert."),
        ("MPNetForMaskedLM", "MPNetModel", "mpnet."),
        ("ModernBertForMaskedLM", "ModernBertModel", "model."),
        ("RobertaForMaskedLM", "RobertaModel", "roberta."),
        ("XLMRobertaForMaskedLM", "XLMRobertaModel", "roberta."),
    ):
        found[name] = replace(found[encoder], prefix=prefix)
    return found


ENCODERS: Mapping[str, Encoder] = MappingProxyType(_encoders())
