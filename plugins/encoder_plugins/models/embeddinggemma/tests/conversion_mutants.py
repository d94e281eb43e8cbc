"""Deliberate mistakes in what EmbeddingGemma's conversion writes: each must end in a refusal or in Failed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from encoder_plugins.families.embedding.conversion import DENSE_FILE
from encoder_plugins.families.embedding.served import DENSE_KEY
from encoder_plugins.parity.tests.mutants import (
    Change,
    Mutant,
    config,
    filled,
    lower_cased,
    row_lost,
    swapped,
    tokenizer,
    weights,
    without,
)


def dense(position: int, **fields: Any) -> Change:
    """Return a change of a Dense module in config.json."""

    def apply(folder: Path) -> None:
        path = folder / "config.json"
        whole = json.loads(path.read_text(encoding="utf-8"))
        whole[DENSE_KEY][position] |= fields
        path.write_text(json.dumps(whole), encoding="utf-8")

    return apply


def dense_lost(folder: Path) -> None:
    """Neither in the configuration nor in the weights."""
    (folder / DENSE_FILE).unlink()
    config(**{DENSE_KEY: []})(folder)


def limit(tokens: int) -> Change:
    """Return a change of the tokens that are kept of a text."""

    def apply(folder: Path) -> None:
        path = folder / "sentence_bert_config.json"
        whole = json.loads(path.read_text(encoding="utf-8"))
        # a link to the published file would change that, too
        path.unlink()
        path.write_text(json.dumps({**whole, "max_seq_length": whole["max_seq_length"] + tokens}), encoding="utf-8")

    return apply


def copied(change: Change, name: str) -> Change:
    """Return ``change``, made in a copy of a published file."""

    def apply(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).unlink()
        (folder / name).write_bytes(content)
        change(folder)

    return apply


def prompts(folder: Path) -> None:
    """The prompt of queries without its last space."""
    path = folder / "config_sentence_transformers.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    whole["prompts"]["query"] = whole["prompts"]["query"].rstrip()
    path.write_text(json.dumps(whole), encoding="utf-8")


def by_distance(folder: Path) -> None:
    """Scores by another similarity, which no vector shows."""
    path = folder / "config_sentence_transformers.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**whole, "similarity_fn_name": "euclidean"}), encoding="utf-8")


def not_normalized(folder: Path) -> None:
    """The last module lost."""
    path = folder / "modules.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(whole[:-1]), encoding="utf-8")
    shutil.rmtree(folder / whole[-1]["path"])


def all_mutants() -> Iterator[Mutant]:
    """Yield every mistake."""
    layer = "layers.0."
    yield Mutant(
        "the columns of a Dense module reversed",
        weights(
            lambda found: found.update({"dense.0.linear.weight": found["dense.0.linear.weight"].flip(1)}), DENSE_FILE
        ),
    )
    yield Mutant("all Dense modules lost", dense_lost)
    yield Mutant("an activation added", dense(0, activation="Tanh"))
    yield Mutant("a norm's weight dropped", filled("norm.weight", 0.0))
    yield Mutant("the norm of queries dropped", filled(f"{layer}self_attn.q_norm.weight", 0.0))
    yield Mutant("gate and value swapped", swapped(f"{layer}mlp.gate_proj.weight", f"{layer}mlp.up_proj.weight"))
    yield Mutant(
        "keys and values swapped", swapped(f"{layer}self_attn.k_proj.weight", f"{layer}self_attn.v_proj.weight")
    )
    yield Mutant("an embedding row lost", row_lost("embed_tokens.weight", 300))
    yield Mutant("the epsilon of norms wrong", config(rms_norm_eps=0.3))
    yield Mutant("the window one token narrower", config(sliding_window=14))
    yield Mutant("the window not halved", config(sliding_window=32))
    yield Mutant("the rotary bases swapped", config(rope_theta=10_000.0, rope_local_base_freq=1_000_000.0))
    yield Mutant("scores scaled by another number", config(query_pre_attn_scalar=256))
    yield Mutant("the global layer first", config(layer_types=["full_attention"] + ["sliding_attention"] * 5))
    yield Mutant(
        "special tokens around a text lost",
        copied(tokenizer(lambda whole: whole.update(post_processor=None)), "tokenizer.json"),
    )
    yield Mutant("text lower-cased by the tokenizer", copied(tokenizer(lower_cased), "tokenizer.json"))
    yield Mutant("a prompt without its last space", copied(prompts, "config_sentence_transformers.json"))
    yield Mutant("scores by another similarity", copied(by_distance, "config_sentence_transformers.json"))
    yield Mutant("vectors not normalised", copied(not_normalized, "modules.json"))
    yield Mutant("a text cut one token too early", limit(-1))
    # these are refused when the engine loads them: each needs another engine
    yield Mutant("the Dense modules swapped", swapped("dense.0.linear.weight", "dense.1.linear.weight", DENSE_FILE))
    yield Mutant("a Dense module missing", without("dense.1.linear.weight", DENSE_FILE))
    yield Mutant("a text cut one token too late", limit(1))
