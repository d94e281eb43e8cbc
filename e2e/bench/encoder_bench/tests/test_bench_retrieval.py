"""What the comparison of retrievers is made of; and all of it once, small, as `soak`."""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.flop_counter import FlopCounterMode

from encoder_bench import retrieval, retrieval_arithmetic, retrieval_checkpoint, unrecorded, workload
from encoder_bench.retrieval_checkpoint import KINDS
from encoder_bench.retrieval_sides import Row


def test_texts_have_the_wanted_number_of_tokens() -> None:
    # a token for each letter
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split("", "isolated")]
    )
    texts = workload.texts_of_tokens(tokenizer, 8, 40)
    assert len(set(texts)) == 8
    assert {len(tokenizer.encode(text).ids) for text in texts} == {40}


def test_the_table_compares_with_the_best_library_and_with_the_same_load() -> None:
    rows = [
        Row(tokens=32, side="sentence-transformers", load="batches of 8", rate=50.0),
        Row(tokens=32, side="pylate", load="batches of 8", rate=100.0),
        Row(tokens=32, side="ours, HTTP", load="8 clients x 1 text", rate=400.0, share=0.125, notes="note"),
        Row(tokens=32, side="vllm serve, HTTP", load="8 clients x 1 text", rate=200.0),
        Row(tokens=32, side="vllm serve, HTTP", load="1 client x 1 text", rate=10.0),
        Row(tokens=32, side="vllm-factory, HTTP", load="1 client x 1 text", rate=40.0),
        Row(tokens=32, side="vllm-factory, HTTP", load="64 clients x 1 text", rate=80.0),
        Row(tokens=32, side="ours, HTTP", load="1 client x 9 texts", rate=300.0, scored=True),
    ]
    shown = retrieval.table(rows, 32).splitlines()
    assert "| 32 | ours, HTTP | 8 clients x 1 text | 400 | 1.28e+04 | 4.00 | 2.00 | 5.00 | 12.5% | note |" in shown
    assert "| ours, HTTP | 1 client x 9 texts | 300 |  | 0.75 |  |" in shown


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("plugin", list(KINDS))
def test_the_arithmetic_is_what_torch_counts(plugin: str, tmp_path: Path) -> None:
    kind, tokens = KINDS[plugin], 12
    retrieval_checkpoint.build(tmp_path, plugin, "tiny")
    for number, module in enumerate(sorted(tmp_path.glob("*_Dense/model.safetensors"))):
        named = {f"dense.{number}.{name}": tensor for name, tensor in load_file(module).items()}
        save_file(named, tmp_path / f"dense-{number}.safetensors")
    encoder = retrieval_arithmetic.read(tmp_path, pooled=kind.pooled)
    model = transformers.AutoModel.from_pretrained(tmp_path, attn_implementation="eager", dtype=torch.float32)
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        model(input_ids=torch.full((1, tokens), 7))
    counted = counter.get_total_flops()
    # a library's attention computes what a causal mask hides, and BERT's class a head that nothing reads
    hidden = 4 * tokens * tokens * encoder.width * len(encoder.windows) / 2 if encoder.causal else 0
    unread = 2 * model.config.hidden_size**2 if model.config.model_type == "bert" else 0
    behind = sum(load_file(path)["linear.weight"].numel() for path in tmp_path.glob("*_Dense/model.safetensors"))
    projected = 2 * behind * (1 if kind.pooled else tokens)
    assert encoder.operations(tokens) == pytest.approx(counted - hidden - unread + projected, rel=0.01)


def test_a_window_is_counted_as_far_as_it_reaches() -> None:
    whole = retrieval_arithmetic.Encoder(matrices=0, vector=0, width=1, windows=(0, 8), causal=False)
    assert whole.operations(100) == 4 * 100 * (100 + 8)
    assert dataclasses.replace(whole, causal=True).operations(100) == 4 * 100 * (50 + 8)


def test_shares_are_of_encoded_texts() -> None:
    encoder = retrieval_arithmetic.Encoder(matrices=50, vector=0, width=1, windows=(), causal=False)
    rows = [
        Row(tokens=10, side="ours", load="", rate=3.0),
        Row(tokens=10, side="ours", load="", rate=3.0, scored=True),
    ]
    assert [row.share for row in retrieval.with_shares(rows, encoder, 30_000.0)] == [0.1, 0.0]


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("plugin", list(KINDS))
def test_a_comparison_runs_on_a_cpu(plugin: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    building, measuring = argparse.ArgumentParser(), argparse.ArgumentParser()
    unrecorded.add_arguments(building)
    assert unrecorded.main(building.parse_args([plugin, str(tmp_path)])) == 0
    retrieval.add_arguments(measuring)
    kind = KINDS[plugin]
    sides = ["sentence_transformers", "ours", "http", *(() if kind.pooled else ("pylate",))]
    sides += ["vllm"] if kind.architecture else []
    arguments = [str(tmp_path / "artifact"), str(tmp_path / "source"), "--sides", *sides, "--tokens", "32"]
    arguments += ["--texts", "16", "--documents", "16", "--clients", "2x4", "--processes", "1"]
    assert retrieval.main(measuring.parse_args(arguments)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("| 32 ")]) == len(sides)


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("plugin", ["moderncolbert", "lfm2_colbert"])
def test_memory_of_long_documents_grows_with_their_length(plugin: str, tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    unrecorded.add_arguments(parser)
    assert unrecorded.main(parser.parse_args([plugin, str(tmp_path)])) == 0
    # an engine that is alone in its process
    command = [sys.executable, "-m", "encoder_bench", "memory", str(tmp_path / "artifact")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    print(done.stdout)
    each = [float(line.split("|")[3]) for line in done.stdout.splitlines() if line.startswith("| 16 x ")]
    assert len(each) == 3
    assert max(each) <= 1.25 * min(each), done.stdout
