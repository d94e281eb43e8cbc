"""Which encoders are served, and under which names. Neither torch nor vLLM is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    ours = {
        **{
            name: Encoder(
                architecture="SentenceBertModel",
                prefix=prefix,
                read=post_norm_settings.read_bert,
                layout=post_norm_settings.bert_layout,
            )
            for name, prefix in (
                ("BertModel", "bert."),
                ("CamembertModel", "roberta."),
                ("RobertaModel", "roberta."),
                ("XLMRobertaModel", "roberta."),
            )
        },
        "DistilBertModel": Encoder(
            architecture="SentenceDistilBertModel",
            prefix="distilbert.",
            read=post_norm_settings.read_distilbert,
            layout=post_norm_settings.distilbert_layout,
        ),
        "MPNetModel": Encoder(
            architecture="SentenceMPNetModel",
            prefix="mpnet.",
            read=post_norm_settings.read_mpnet,
            layout=post_norm_settings.mpnet_layout,
        ),
        "ModernBertModel": Encoder(
            architecture="SentenceModernBertModel",
            prefix="model.",
            read=modernbert_settings.Settings.read,
            layout=modernbert_settings.layout,
        ),
    }
    # an artifact's config.json names the engine's class
    return found | ours | {encoder.architecture: encoder for encoder in ours.values()}


ENCODERS: Mapping[str, Encoder] = MappingProxyType(_encoders())


def encoder_of(name: str) -> Encoder | None:
    """Return the encoder of an architecture, None for one that is not served.

    Of a model with a head, as ``BertForMaskedLM`` or ``BertForPreTraining``, the library loads the encoder alone, whatever the head.
    """
    if name in ENCODERS:
        return ENCODERS[name]
    encoder, with_head, _ = name.partition("For")
    found = ENCODERS.get(f"{encoder}Model") if with_head else None
    # vLLM has classes of its own for such models
    return None if found is None or found.read is None else found
