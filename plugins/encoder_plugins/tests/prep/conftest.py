"""A tiny checkpoint, a real hub that serves it, and a plugin whose recorder needs no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from safetensors.numpy import save_file

from encoder_plugins import catalog
from encoder_plugins.plugin import Plugin
from encoder_plugins.prepare import Request
from encoder_plugins.progress import Progress
from encoder_plugins.reference import Recording

HUB = Path(__file__).parents[4] / "e2e" / "hub" / "hub.py"
WIDTH, VOCABULARY = 8, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]

Requested = Callable[..., Request]


def write_checkpoint(folder: Path) -> None:
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


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of repositories with one in it."""
    folder = tmp_path_factory.mktemp("models")
    write_checkpoint(folder / "demo" / "tiny")
    return folder


@pytest.fixture
def checkpoint(models: Path, tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint that a test may change."""
    folder = tmp_path / "checkpoint"
    write_checkpoint(folder)
    return folder


class Hub:
    """A running hub server."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._revisions: dict[str, dict[str, str]] = self._get("/api")["repositories"]

    @property
    def revision(self) -> str:
        """The tiny checkpoint's commit."""
        return self.revision_of("demo/tiny")

    @property
    def second_revision(self) -> str:
        """Another commit of the tiny checkpoint."""
        return self.revision_of("demo/tiny", "v2")

    def revision_of(self, repository: str, tag: str = "v1") -> str:
        """The commit that a tag of a repository names."""
        return self._revisions[repository][tag]

    def requests(self, repository: str) -> dict[str, int]:
        """How often each route was asked about a repository."""
        return {route: count for route, count in self._get("/_requests").items() if route.endswith(f" {repository}")}

    def _get(self, path: str) -> Any:
        with urlopen(f"{self.address}{path}") as answer:
            return json.load(answer)


@contextmanager
def running_hub(*options: str) -> Iterator[Hub]:
    """Run a hub server while the block lasts."""
    command = [sys.executable, str(HUB), "--host", "127.0.0.1", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield Hub(server.stdout.readline().strip())
        finally:
            server.terminate()


@pytest.fixture(scope="session")
def run_hub() -> Callable[..., AbstractContextManager[Hub]]:
    """Start a hub server with options of the test's own."""
    return running_hub


@pytest.fixture(scope="session")
def hub(models: Path) -> Iterator[Hub]:
    """The hub server that serves the tiny checkpoint."""
    with running_hub("--models", str(models)) as server:
        yield server


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replace the original library by a function that only notes the folder it was given."""
    calls: list[Path] = []

    def record(model: Path) -> Recording:
        calls.append(model)
        width = json.loads((model / "1_Pooling" / "config.json").read_bytes())["word_embedding_dimension"]
        return Recording(
            cases=[{"id": "one", "texts": ["a"]}, {"id": "two", "texts": ["b", "c"]}],
            expected={"one": np.zeros((1, width), np.float32), "two": np.ones((2, width), np.float32)},
            about={"library": "none"},
        )

    module = ModuleType("recorder_of_the_tests")
    module.record = record  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


@pytest.fixture
def plugin() -> Plugin:
    return replace(catalog.get("sentence_transformer"), reference="recorder_of_the_tests:record")


@pytest.fixture
def requested(hub: Hub, plugin: Plugin, recorder: list[Path], tmp_path: Path) -> Requested:
    """Build a request for the tiny checkpoint, or for what a test names instead."""

    def request(source: str = "demo/tiny", **changes: Any) -> Request:
        revision = None if source.startswith("/") else hub.revision
        defaults: dict[str, Any] = {"revision": revision, "endpoint": hub.address, "stall_seconds": 1.0}
        return Request(plugin=plugin, source=source, output=tmp_path / "volume" / "key", **defaults | changes)

    return request


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let waits between two tries take no time, and return how long they would have been."""
    waits: list[float] = []
    monkeypatch.setattr("encoder_plugins.download.time.sleep", waits.append)
    return waits


@pytest.fixture
def lines() -> list[dict[str, object]]:
    """What prep told while it worked."""
    return []


@pytest.fixture
def progress(lines: list[dict[str, object]]) -> Progress:
    return Progress(lines.append)
