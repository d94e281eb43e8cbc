"""Writes a tiny sentence-transformers checkpoint without torch: one random BERT layer over single letters."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

WIDTH, VOCABULARY = 8, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]


def write(folder: Path) -> None:
    """Write a sentence-transformers checkpoint of one random BERT layer, as a training run leaves it."""
    random = np.random.default_rng(7)
    vector, square = (WIDTH,), (WIDTH, WIDTH)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(VOCABULARY), WIDTH),
        "embeddings.position_embeddings.weight": (32, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        "embeddings.LayerNorm.weight": vector,
        "embeddings.LayerNorm.bias": vector,
        "pooler.dense.weight": square,
        "pooler.dense.bias": vector,
    }
    parts = [
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
        "intermediate.dense",
        "output.dense",
    ]
    for part in parts:
        shapes |= {f"encoder.layer.0.{part}.weight": square, f"encoder.layer.0.{part}.bias": vector}
    for part in ("attention.output.LayerNorm", "output.LayerNorm"):
        shapes |= {f"encoder.layer.0.{part}.weight": vector, f"encoder.layer.0.{part}.bias": vector}
    tensors = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "onnx").mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "pytorch_model.bin").write_bytes(b"the same weights, pickled")
    (folder / "onnx" / "model.onnx").write_bytes(b"the same weights once more")
    (folder / "train_script.py").write_text("raise SystemExit('never run')\n")
    (folder / "README.md").write_text("# tiny\n")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
    for name, value in _configuration().items():
        (folder / name).write_text(json.dumps(value))


def as_published(model: Path, target: Path) -> Path:
    """Copy an artifact's model folder with the published config.json, the one file that conversion changes; return the copy."""
    shutil.copytree(model, target)
    (target / "config.json").write_text(json.dumps(_configuration()["config.json"]))
    return target


def _configuration() -> dict[str, Any]:
    return {
        "config.json": {
            "architectures": ["BertModel"], "model_type": "bert", "hidden_size": WIDTH, "num_hidden_layers": 1,
            "num_attention_heads": 2, "intermediate_size": WIDTH, "max_position_embeddings": 32,
            "vocab_size": len(VOCABULARY), "pad_token_id": 0,
        },
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        ],
        "1_Pooling/config.json": {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True},
        "sentence_bert_config.json": {"max_seq_length": 16, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"query": "q "}},
        "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "model_max_length": 32, "do_lower_case": True},
        "tokenizer.json": {
            "version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [
                {"id": index, "content": token, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
                for index, token in enumerate(VOCABULARY[:5])
            ],
            "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "model": {
                "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                "vocab": {token: index for index, token in enumerate(VOCABULARY)},
            },
        },
    }  # fmt: skip
