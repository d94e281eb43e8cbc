"""Tiny checkpoints with random weights, one for each encoder that is served, saved by sentence-transformers itself.

``save`` runs in that library's environment; ``build`` is for everybody else.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PretrainedConfig, PreTrainedTokenizerFast

from encoder_plugins.families.embedding.cases import TEXTS

# heads of 32 are the smallest that vLLM's CPU attention has
WIDTH, HEADS, LAYERS, VOCABULARY = 64, 2, 2, 600
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


@dataclass(frozen=True)
class Tiny:
    """What a tiny checkpoint is made of."""

    name: str
    config: Callable[[], PretrainedConfig]
    architecture: str
    template: str = "<s> $A </s>"
    pooling: str = "mean"
    dense: tuple[int, ...] = ()
    normalize: bool = True
    max_tokens: int = 48
    # how checkpoints configured these before sentence-transformers 6 moved them into the tokenizer
    legacy: dict[str, Any] | None = None
    padding_side: str = "right"
    # with a head for masked words, as a pretrained checkpoint has it
    masked: bool = False
    # further fields of config_sentence_transformers.json
    library: dict[str, Any] = field(default_factory=dict)


def _sizes(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": 96,
        "max_position_embeddings": 128,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        **more,
    }


TINY = [
    Tiny(
        "bert",
        lambda: transformers.BertConfig(**_sizes()),
        "BertModel",
        legacy={"max_seq_length": 40, "do_lower_case": True},
    ),
    Tiny("bert-masked", lambda: transformers.BertConfig(**_sizes()), "BertForMaskedLM", masked=True),
    Tiny(
        "bert-cls-raw",
        lambda: transformers.BertConfig(**_sizes()),
        "BertModel",
        pooling="cls",
        normalize=False,
        library={"truncate_dim": 40, "similarity_fn_name": "dot"},
    ),
    Tiny(
        "camembert-masked",
        lambda: transformers.CamembertConfig(**_sizes(max_position_embeddings=130)),
        "CamembertForMaskedLM",
        masked=True,
    ),
    Tiny("roberta", lambda: transformers.RobertaConfig(**_sizes(max_position_embeddings=130)), "RobertaModel"),
    Tiny(
        "xlm-roberta",
        lambda: transformers.XLMRobertaConfig(**_sizes(max_position_embeddings=130)),
        "XLMRobertaModel",
        pooling="cls",
        dense=(32,),
    ),
    # published as all-mpnet-base-v2 is: the name of a model for masked words, over the encoder's own tensors
    Tiny("mpnet", lambda: transformers.MPNetConfig(**_sizes(max_position_embeddings=130)), "MPNetForMaskedLM"),
    Tiny(
        "distilbert",
        lambda: transformers.DistilBertConfig(
            vocab_size=VOCABULARY, dim=WIDTH, n_layers=LAYERS, n_heads=HEADS, hidden_dim=96, pad_token_id=1
        ),
        "DistilBertModel",
    ),
    Tiny(
        "modernbert",
        lambda: transformers.ModernBertConfig(
            **_sizes(
                num_hidden_layers=4, local_attention=16, global_attn_every_n_layers=3, cls_token_id=0, sep_token_id=2
            )
        ),
        "ModernBertModel",
    ),
    Tiny(
        "qwen3",
        lambda: transformers.Qwen3Config(**_sizes(num_key_value_heads=1, head_dim=32, tie_word_embeddings=True)),
        "Qwen3Model",
        template="$A </s>",
        pooling="lasttoken",
        padding_side="left",
    ),
    Tiny(
        "gemma3",
        lambda: transformers.Gemma3TextConfig(
            **_sizes(
                num_key_value_heads=1,
                head_dim=32,
                num_hidden_layers=6,
                sliding_window=16,
                use_bidirectional_attention=True,
            )
        ),
        "Gemma3TextModel",
        dense=(128, 64),
    ),
]


def build(name: str, folder: Path) -> Path:
    """Write the tiny checkpoint called ``name`` below ``folder``, and return where it is."""
    from encoder_checkpoints.original import built

    cached = built("sentence_transformers", "encoder_plugins.models.sentence_transformer.tests.tiny:save", name)
    shutil.copytree(cached / name, folder / name)
    return folder / name


def named(name: str) -> Tiny:
    """Return the tiny checkpoint called ``name``."""
    return next(tiny for tiny in TINY if tiny.name == name)


def save(folder: Path, name: str) -> None:
    """Save a tiny checkpoint below ``folder``, with the library."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    tiny = named(name)
    torch.manual_seed(7)
    encoder, saved = folder / "encoder", folder / tiny.name
    model = transformers.AutoModel.from_config(tiny.config())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # random weights give vectors that hardly differ; larger ones make neighbours and positions count
            parameter.copy_(
                torch.randn_like(parameter) * (0.15 if parameter.ndim > 1 else 0.02)
                + float("norm.weight" in name.lower())
            )
    model.save_pretrained(encoder)
    _tokenizer(tiny).save_pretrained(encoder)
    modules: list[torch.nn.Module] = [Transformer(str(encoder), max_seq_length=tiny.max_tokens)]
    modules.append(Pooling(WIDTH, pooling_mode=tiny.pooling))
    width = WIDTH
    for out in tiny.dense:
        modules.append(Dense(width, out, bias=False, activation_function=torch.nn.Identity()))
        width = out
    if tiny.normalize:
        modules.append(Normalize())
    prompts = {"query": "query: ", "passage": "passage: "}
    SentenceTransformer(modules=modules, device="cpu", prompts=prompts).save(str(saved), create_model_card=False)
    if tiny.masked:
        _add_head(saved)
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, "architectures": [tiny.architecture]}, indent=2))
    library = saved / "config_sentence_transformers.json"
    library.write_text(json.dumps({**json.loads(library.read_text()), **tiny.library}))
    if tiny.legacy is not None:
        (saved / "sentence_bert_config.json").write_text(json.dumps(tiny.legacy))
    shutil.rmtree(encoder)


def _add_head(saved: Path) -> None:
    """Write the weights as a model for masked words has them: the encoder below a prefix, and a head beside it."""
    model = transformers.AutoModelForMaskedLM.from_config(transformers.AutoConfig.from_pretrained(saved))
    encoder = model.base_model
    encoder.load_state_dict(transformers.AutoModel.from_pretrained(saved).state_dict(), strict=False)
    model.save_pretrained(saved)


def _tokenizer(tiny: Tiny) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS.values(), trainer)
    backend.post_processor = processors.TemplateProcessing(
        single=tiny.template, special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        cls_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        sep_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
        padding_side=tiny.padding_side,
    )
