"""Build tiny ColBERT checkpoints as users publish them: saved by sentence-transformers' own class, or rewritten into an older format.

``save`` runs in the library's environment. A plugin gives the encoder and the tokenizer; what they share is here: the
modules behind the encoder, weights that show an error, PyLate's format, and Stanford's.
"""

from __future__ import annotations

import json
import shutil
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

WIDTH, DIMENSIONS, VOCABULARY, POSITIONS = 64, 32, 600, 128
PREFIXES = ("[Q] ", "[D] ")


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """What a tiny checkpoint is made of.

    Attributes:
        name: Its name.
        pylate: PyLate's fields of config_sentence_transformers.json; None for another format.
        left_open: Fields of that file that it lacks.
        stanford: Fields of Stanford's artifact.metadata; None for another format.
        transformer: Fields of the native form's Transformer module.
        dense: Width behind each Dense module, and whether it has a residual branch.
        activation: The activation of all Dense modules but the last.
        skiplist: Arguments of the native form's MultiVectorMask module.
        masked: Whether the encoder is published with a head for masked words.
        encoder: Fields of the encoder's configuration.
        prompts: Further prompts by name; in PyLate's format they stand behind the prefixes.
    """

    name: str
    pylate: dict[str, Any] | None = None
    left_open: tuple[str, ...] = ()
    stanford: dict[str, Any] | None = None
    transformer: dict[str, Any] = field(default_factory=dict)
    dense: tuple[tuple[int, bool], ...] = ((DIMENSIONS, False),)
    activation: type[torch.nn.Module] = torch.nn.Identity
    skiplist: dict[str, Any] = field(default_factory=dict)
    masked: bool = False
    encoder: dict[str, Any] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)


def save(
    folder: Path,
    tiny: Tiny,
    tokenizer: PreTrainedTokenizerFast,
    model: Callable[[int], transformers.PreTrainedModel],
    *,
    prefixes: tuple[str, str] = PREFIXES,
) -> None:
    """Save a tiny checkpoint below ``folder``, with the library.

    Args:
        folder: Gets a folder of the checkpoint's name.
        tiny: What the checkpoint is made of.
        tokenizer: Its tokenizer; as PyLate adds them, the prefixes may be tokens of it.
        model: Builds the encoder for a number of tokens.
        prefixes: What queries and documents begin with.
    """
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    torch.manual_seed(7)
    encoder, saved = folder / "encoder", folder / tiny.name
    built = model(len(tokenizer))
    draw(built, 0.15)
    built.save_pretrained(encoder)
    tokenizer.save_pretrained(encoder)
    modules: list[torch.nn.Module] = [Transformer(str(encoder), **tiny.transformer)]
    width = built.config.hidden_size
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
        draw(modules[-1], 0.2)
        width = out
    modules += [MultiVectorMask(**tiny.skiplist), Normalize(module_input_name="token_embeddings")]
    prompts = dict(zip(("query", "document"), prefixes, strict=True)) | tiny.prompts
    MultiVectorEncoder(modules=modules, device="cpu", prompts=prompts).save_pretrained(
        str(saved), create_model_card=False
    )
    if tiny.masked:
        _add_head(saved)
    if tiny.pylate is not None:
        _as_pylate(saved, prefixes, {"prompts": tiny.prompts, **tiny.pylate}, tiny.left_open)
    if tiny.stanford is not None:
        _as_stanford(saved, f"{built.base_model_prefix}.", tiny.stanford)
    shutil.rmtree(encoder)


def draw(module: torch.nn.Module, scale: float) -> None:
    """Draw weights that make neighbours, positions and projections count; the initial ones give rows that hardly differ."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            # a bias or the weight of a norm that is lost has to be seen through the rounding of bfloat16
            size = scale if parameter.ndim > 1 else 0.2
            parameter.copy_(torch.randn_like(parameter) * size + float("norm.weight" in name.lower()))


def byte_level_tokenizer(
    texts: Iterable[str],
    specials: list[str],
    template: str,
    *,
    prefixes: tuple[str, ...] = PREFIXES,
    vocabulary: int = VOCABULARY,
    **named: str,
) -> PreTrainedTokenizerFast:
    """Train a byte-level tokenizer.

    Args:
        texts: What it is trained on.
        specials: Its special tokens.
        template: What stands around a text, e.g. ``[CLS] $A [SEP]``.
        prefixes: Tokens that are added behind, as PyLate adds them.
        vocabulary: Entries, without those added behind.
        named: Roles of special tokens, ``unk_token`` among them.
    """
    backend = Tokenizer(models.BPE(unk_token=named["unk_token"]))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single=template,
        special_tokens=[(token, specials.index(token)) for token in template.split() if token != "$A"],
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **named)
    tokenizer.add_tokens(list(prefixes))
    return tokenizer


def word_piece_tokenizer(
    texts: Iterable[str], *, prefixes: tuple[str, ...] = (), vocabulary: int = VOCABULARY
) -> PreTrainedTokenizerFast:
    """Train a tokenizer of BERT's kind, which lower-cases and has entries that are not used, as Stanford's markers need them.

    Args:
        texts: What it is trained on.
        prefixes: Tokens that are added behind, as PyLate adds them.
        vocabulary: Entries, without those added behind.
    """
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    unused = ["[unused0]", "[unused1]", "[unused2]"]
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=vocabulary, special_tokens=[*specials, *unused], show_progress=False)
    backend.train_from_iterator(texts, trainer)
    # a tokenizer of the same entries, to which those that are not used are no special tokens
    tokenizer = transformers.BertTokenizer(vocab=backend.get_vocab(), do_lower_case=True)
    tokenizer.add_tokens(list(prefixes))
    return tokenizer


def _as_pylate(saved: Path, prefixes: tuple[str, str], fields: dict[str, Any], left_open: tuple[str, ...]) -> None:
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
            residual = {"use_residual": dense.get("use_residual", False)}
            path.write_text(json.dumps({name: dense[name] for name in names} | residual))
        else:
            shutil.rmtree(saved / module["path"])
    (saved / "modules.json").write_text(json.dumps(kept, indent=2))
    (saved / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 31, "do_lower_case": False}))
    library = {
        "default_prompt_name": None,
        "similarity_fn_name": "MaxSim",
        "model_type": "ColBERT",
        "query_prefix": prefixes[0],
        "document_prefix": prefixes[1],
        "attend_to_expansion_tokens": False,
        "skiplist_words": list(string.punctuation),
        "do_query_expansion": True,
        **fields,
    }
    written = {name: value for name, value in library.items() if name not in left_open}
    (saved / "config_sentence_transformers.json").write_text(json.dumps(written, indent=2))


def _as_stanford(saved: Path, below: str, metadata: dict[str, Any]) -> None:
    """Rewrite a native save as Stanford's ColBERT writes it: encoder and projection in one file, settings beside them."""
    config = json.loads((saved / "config.json").read_text())
    tensors = {below + name: tensor for name, tensor in load_file(saved / "model.safetensors").items()}
    (dense,) = saved.glob("*_Dense")
    tensors["linear.weight"] = load_file(dense / "model.safetensors")["linear.weight"]
    for module in json.loads((saved / "modules.json").read_text()):
        if module["path"]:
            shutil.rmtree(saved / module["path"])
    for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        (saved / name).unlink()
    save_file(tensors, saved / "model.safetensors", metadata={"format": "pt"})
    (saved / "config.json").write_text(json.dumps({**config, "architectures": ["HF_ColBERT"]}, indent=2))
    (saved / "artifact.metadata").write_text(json.dumps(metadata, indent=2))


def _add_head(saved: Path) -> None:
    """Write the weights as a model for masked words has them: the encoder below a prefix, and a head beside it."""
    model = transformers.AutoModelForMaskedLM.from_config(transformers.AutoConfig.from_pretrained(saved))
    encoder = transformers.AutoModel.from_pretrained(saved)
    model.base_model.load_state_dict(encoder.state_dict(), strict=False)
    model.save_pretrained(saved)
