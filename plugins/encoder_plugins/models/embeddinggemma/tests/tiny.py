"""A tiny checkpoint with random weights as google/embeddinggemma-300m is published, saved by sentence-transformers itself.

``save`` runs in that library's environment; ``build`` is for everybody else.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from encoder_plugins.families.embedding.cases import TEXTS

NAME = "embeddinggemma-tiny"
# heads of 32 are the smallest that vLLM's CPU attention has; together they are narrower than a token. A vector that can be cut
WIDTH, INNER, HEADS, HEAD_SIZE, LAYERS, VOCABULARY = 160, 320, 4, 32, 6, 1200
# 8 tokens on either side: most texts are longer
WINDOW, MAX_TOKENS = 16, 64
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>"]

# those of the published checkpoint
PROMPTS = {
    "query": "task: search result | query: ",
    "document": "title: none | text: ",
    "BitextMining": "task: search result | query: ",
    "Clustering": "task: clustering | query: ",
    "Classification": "task: classification | query: ",
    "InstructionRetrieval": "task: code retrieval | query: ",
    "MultilabelClassification": "task: classification | query: ",
    "PairClassification": "task: sentence similarity | query: ",
    "Reranking": "task: search result | query: ",
    "Retrieval": "task: search result | query: ",
    "Retrieval-query": "task: search result | query: ",
    "Retrieval-document": "title: none | text: ",
    "STS": "task: sentence similarity | query: ",
    "Summarization": "task: summarization | query: ",
}


def build(folder: Path) -> Path:
    """Write the checkpoint below ``folder``, and return where it is."""
    from encoder_checkpoints.original import built

    cached = built("sentence_transformers", "encoder_plugins.models.embeddinggemma.tests.tiny:save")
    shutil.copytree(cached / NAME, folder / NAME)
    return folder / NAME


def save(folder: Path) -> None:
    """Save the checkpoint below ``folder``, with the library."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    torch.manual_seed(7)
    encoder, saved = folder / "encoder", folder / NAME
    model = transformers.Gemma3TextModel(
        transformers.Gemma3TextConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            intermediate_size=96,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=1,
            head_dim=HEAD_SIZE,
            query_pre_attn_scalar=HEAD_SIZE,
            max_position_embeddings=128,
            sliding_window=WINDOW,
            use_bidirectional_attention=True,
        )
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # random weights give vectors that hardly differ; larger ones make neighbours and positions count
            parameter.copy_(torch.randn_like(parameter) * (0.1 if parameter.ndim > 1 else 0.2))
            if "embed_tokens" in name:
                parameter *= 0.5
    model.save_pretrained(encoder)
    _tokenizer().save_pretrained(encoder)
    identity = torch.nn.Identity()
    modules: list[torch.nn.Module] = [
        Transformer(str(encoder), max_seq_length=MAX_TOKENS),
        Pooling(WIDTH, pooling_mode="mean"),
        Dense(WIDTH, INNER, bias=False, activation_function=identity),
        Dense(INNER, WIDTH, bias=False, activation_function=identity),
        Normalize(),
    ]
    SentenceTransformer(modules=modules, device="cpu", prompts=PROMPTS).save(str(saved), create_model_card=False)
    _as_published(saved)
    shutil.rmtree(encoder)


def _as_published(saved: Path) -> None:
    """Write the files that transformers 5 writes in another form as those of the published checkpoint, which transformers 4 wrote."""
    path = saved / "config.json"
    config: dict[str, Any] = json.loads(path.read_text())
    bases = config.pop("rope_parameters")
    config |= {
        "_sliding_window_pattern": 6,
        "rope_local_base_freq": bases["sliding_attention"]["rope_theta"],
        "rope_scaling": None,
        "rope_theta": bases["full_attention"]["rope_theta"],
    }
    assert config["sliding_window"] == WINDOW
    assert config["layer_types"] == ["sliding_attention"] * 5 + ["full_attention"]
    path.write_text(json.dumps(config, indent=2))
    (saved / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": MAX_TOKENS, "do_lower_case": False}))


def _tokenizer() -> PreTrainedTokenizerFast:
    """Train a tokenizer of Gemma's kind: BPE over text with spaces as `▁`, bytes for what it does not know."""
    tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    # pieces end at spaces while it is trained
    backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[*SPECIAL, *tokens], show_progress=False)
    backend.train_from_iterator([*TEXTS.values(), *PROMPTS.values()] * 2, trainer)
    written = json.loads(backend.to_str())
    # bytes are pieces, not tokens that a text could name
    written["added_tokens"] = [token for token in written["added_tokens"] if token["content"] in SPECIAL]
    backend = Tokenizer.from_str(json.dumps(written))
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        padding_side="left",
    )
