"""Tiny ColBERT checkpoints on ModernBERT with random weights, one for each form that users publish.

``save`` runs in the environment of sentence-transformers, whose own class saves the native form; PyLate's is that form with
PyLate's names for modules and its fields. ``build`` is for everybody else.
"""

from __future__ import annotations

import json
import shutil
import string
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from encoder_plugins.families.retrieval.cases import PASSAGES, TEXTS

# heads of 32 are the smallest that vLLM's CPU attention has
WIDTH, HEADS, LAYERS, VOCABULARY, DIMENSIONS, POSITIONS = 64, 2, 4, 600, 32, 128
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PREFIXES = ["[Q] ", "[D] "]


@dataclass(frozen=True)
class Tiny:
    """What a tiny checkpoint is made of.

    Attributes:
        name: Its name.
        pylate: PyLate's fields of config_sentence_transformers.json; None for the native form.
        transformer: Fields of the native form's Transformer module.
        dense: Width behind each Dense module, and whether it has a residual branch.
        activation: The activation of all Dense modules but the last.
        skiplist: Arguments of the native form's MultiVectorMask module.
        masked: Whether the encoder is published with a head for masked words.
    """

    name: str
    pylate: dict[str, Any] | None = None
    transformer: dict[str, Any] = field(default_factory=dict)
    dense: tuple[tuple[int, bool], ...] = ((DIMENSIONS, False),)
    activation: type[torch.nn.Module] = torch.nn.Identity
    skiplist: dict[str, Any] = field(default_factory=dict)
    masked: bool = False


TINY = [
    # queries are filled up to more tokens than the window of local layers reaches
    Tiny("pylate", pylate={"query_length": 32, "document_length": 64}),
    Tiny("pylate-attend", pylate={"query_length": 24, "document_length": 48, "attend_to_expansion_tokens": True}),
    Tiny(
        "pylate-no-expansion",
        pylate={"query_length": 24, "document_length": 48, "do_query_expansion": False, "skiplist_words": ["the", "."]},
        masked=True,
    ),
    Tiny(
        "native-three-dense",
        transformer={
            "query_expansion": {"strategy": "min", "length": 20, "attend": False},
            "query_length": 64,
            "document_length": 80,
        },
        dense=((WIDTH, True), (WIDTH, True), (DIMENSIONS, True)),
        activation=torch.nn.GELU,
        skiplist={"skiplist_words": [*string.punctuation, "unknown word"], "skiplist_tasks": ["query", "document"]},
    ),
]


def build(name: str, folder: Path) -> Path:
    """Write the tiny checkpoint called ``name`` below ``folder``, and return where it is."""
    from encoder_checkpoints.original import built

    cached = built("sentence_transformers", "encoder_plugins.models.moderncolbert.tests.tiny:save", name)
    return Path(shutil.copytree(cached / name, folder / name))


def save(folder: Path, name: str) -> None:
    """Save a tiny checkpoint below ``folder``, with the library."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    tiny = next(tiny for tiny in TINY if tiny.name == name)
    torch.manual_seed(7)
    encoder, saved = folder / "encoder", folder / tiny.name
    tokenizer = _tokenizer()
    model = transformers.ModernBertModel(_config(len(tokenizer)))
    _draw(model, 0.15)
    model.save_pretrained(encoder)
    tokenizer.save_pretrained(encoder)
    modules: list[torch.nn.Module] = [Transformer(str(encoder), **tiny.transformer)]
    width = WIDTH
    for index, (out, residual) in enumerate(tiny.dense):
        last = index == len(tiny.dense) - 1
        modules.append(
            Dense(
                width,
                out,
                bias=not last,
                activation_function=torch.nn.Identity() if last else tiny.activation(),
                module_input_name="token_embeddings",
                use_residual=residual,
            )
        )
        _draw(modules[-1], 0.2)
        width = out
    modules += [MultiVectorMask(**tiny.skiplist), Normalize(module_input_name="token_embeddings")]
    prompts = dict(zip(("query", "document"), PREFIXES, strict=True))
    MultiVectorEncoder(modules=modules, device="cpu", prompts=prompts).save_pretrained(
        str(saved), create_model_card=False
    )
    if tiny.masked:
        _add_head(saved)
    if tiny.pylate is not None:
        _as_pylate(saved, tiny.pylate)
    shutil.rmtree(encoder)


def _config(vocabulary: int) -> transformers.ModernBertConfig:
    return transformers.ModernBertConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=96,
        max_position_embeddings=POSITIONS,
        local_attention=16,
        pad_token_id=0,
        bos_token_id=2,
        cls_token_id=2,
        eos_token_id=3,
        sep_token_id=3,
    )


def _draw(module: torch.nn.Module, scale: float) -> None:
    """Draw weights that make neighbours, positions and projections count; the initial ones give rows that hardly differ."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            size = scale if parameter.ndim > 1 else 0.02
            parameter.copy_(torch.randn_like(parameter) * size + float("norm.weight" in name.lower()))


def _as_pylate(saved: Path, fields: dict[str, Any]) -> None:
    """Rewrite a native save as PyLate 1.6 writes it: two kinds of modules, and fields of its own for everything else."""
    modules = json.loads((saved / "modules.json").read_text())
    kept = []
    for module in modules:
        kind = module["type"].rpartition(".")[2]
        if kind == "Transformer":
            kept.append({**module, "type": "sentence_transformers.models.Transformer"})
        elif kind == "Dense":
            kept.append({**module, "type": "pylate.models.Dense.Dense"})
            path = saved / module["path"] / "config.json"
            dense = json.loads(path.read_text())
            names = ("in_features", "out_features", "bias", "activation_function")
            path.write_text(json.dumps({name: dense[name] for name in names} | {"use_residual": False}))
        else:
            shutil.rmtree(saved / module["path"])
    (saved / "modules.json").write_text(json.dumps(kept, indent=2))
    (saved / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 31, "do_lower_case": False}))
    library = {
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "MaxSim",
        "model_type": "ColBERT",
        "query_prefix": PREFIXES[0],
        "document_prefix": PREFIXES[1],
        "attend_to_expansion_tokens": False,
        "skiplist_words": list(string.punctuation),
        "do_query_expansion": True,
        **fields,
    }
    (saved / "config_sentence_transformers.json").write_text(json.dumps(library, indent=2))


def _add_head(saved: Path) -> None:
    """Write the weights as a model for masked words has them: the encoder below a prefix, and a head beside it."""
    model = transformers.AutoModelForMaskedLM.from_config(transformers.AutoConfig.from_pretrained(saved))
    encoder = transformers.AutoModel.from_pretrained(saved)
    model.base_model.load_state_dict(encoder.state_dict(), strict=False)
    model.save_pretrained(saved)


def _tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE(unk_token="[UNK]"))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([*TEXTS.values(), *PASSAGES], trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
    # as PyLate adds them
    tokenizer.add_tokens(PREFIXES)
    return tokenizer
