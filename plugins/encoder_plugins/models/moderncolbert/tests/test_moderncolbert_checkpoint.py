"""What prep refuses of a checkpoint, by file and field, and what it leaves as it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from encoder_plugins.artifact import manifest
from encoder_plugins.errors import PrepareError, SourceFileNotFound, Unsupported
from encoder_plugins.families.retrieval.checkpoint import read_served
from encoder_plugins.families.retrieval.library_format import LIBRARY
from encoder_plugins.families.retrieval.settings import TRANSFORMER
from encoder_plugins.models.moderncolbert.checkpoint import CHECKPOINT
from encoder_plugins.models.moderncolbert.tests import tiny
from encoder_plugins.prep.checkpoint import SourceFile

# torch and transformers warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore")

CONFIG, MODULES, WEIGHTS = "config.json", "modules.json", "model.safetensors"
Change = Callable[[Path], None]


def fields(name: str, **changed: Any) -> Change:
    """Return a change of fields of a JSON file."""

    def apply(folder: Path) -> None:
        before = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
        (folder / name).write_text(json.dumps({**before, **changed}))

    return apply


def module(position: int, **changed: Any) -> Change:
    """Return a change of one entry of modules.json."""

    def apply(folder: Path) -> None:
        entries = json.loads((folder / MODULES).read_text())
        entries[position] |= changed
        (folder / MODULES).write_text(json.dumps(entries))

    return apply


def modules(*types: str) -> Change:
    """Return a change of modules.json to modules of other types."""

    def apply(folder: Path) -> None:
        entries = [
            {"idx": at, "name": str(at), "path": "1_Dense" if at else "", "type": kind} for at, kind in enumerate(types)
        ]
        (folder / MODULES).write_text(json.dumps(entries))

    return apply


def without_tensor(name: str, path: str = WEIGHTS) -> Change:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / path)
        tensors.pop(name)
        save_file(tensors, folder / path, metadata={"format": "pt"})

    return apply


def without_mask_token(folder: Path) -> None:
    fields("tokenizer_config.json", mask_token=None, eos_token=None)(folder)


TRANSFORMER_TYPE = "sentence_transformers.models.Transformer"
EXPANSION = {"strategy": "fixed", "attend": False, "length": 32}


@pytest.mark.parametrize(
    ("checkpoint", "change", "says"),
    [
        ("pylate", fields(CONFIG, architectures=["BertModel"]), 'architectures is .*"BertModel".*ModernBertModel'),
        ("pylate", fields(CONFIG, architectures=["ModernColbertModel"]), "architectures"),
        ("pylate", fields(CONFIG, hidden_activation="relu"), "hidden_activation"),
        ("pylate", fields(CONFIG, max_position_embeddings=40), "up to 64 tokens, and the encoder only 40 positions"),
        ("pylate", fields(CONFIG, vocab_size=500), "tokenizer has ids up to 601, and the embedding only 500 rows"),
        ("pylate", fields(LIBRARY, model_type="SparseEncoder"), "model_type"),
        ("pylate", fields(LIBRARY, model_type=None), "model_type is null"),
        ("pylate", fields(LIBRARY, query_length=2), "length is 2"),
        ("pylate", fields(LIBRARY, document_length="long"), "document_length"),
        ("pylate", fields(LIBRARY, skiplist_words="."), "skiplist_words"),
        ("pylate", fields(LIBRARY, query_prefix=7), "query_prefix"),
        ("pylate", fields(LIBRARY, prompts=["a"]), "prompts"),
        ("pylate", fields(TRANSFORMER, query_expansion={**EXPANSION, "strategy": "max"}), "strategy"),
        ("pylate", fields(TRANSFORMER, query_expansion={**EXPANSION, "attend": "no"}), "attend"),
        ("pylate", fields(TRANSFORMER, query_expansion={**EXPANSION, "token": "[NONE]"}), r"expanded by \[NONE\]"),
        ("pylate", fields(TRANSFORMER, query_expansion={**EXPANSION, "width": 3}), "query_expansion"),
        ("native-three-dense", fields(TRANSFORMER, query_length=12), "length is 20, and query_length only 12"),
        ("pylate", fields(TRANSFORMER, transformer_task="fill-mask"), "transformer_task"),
        ("pylate", fields(TRANSFORMER, modality_config={"text": {}, "message": {}}), "modality_config"),
        ("pylate", fields("tokenizer_config.json", padding_side="left"), "padding_side"),
        ("pylate", fields("tokenizer_config.json", truncation_side="left"), "truncation_side"),
        ("pylate", without_mask_token, "the mask token, which the tokenizer lacks"),
        ("pylate", modules(TRANSFORMER_TYPE), "Transformer; supported: Transformer > Dense"),
        ("pylate", modules(TRANSFORMER_TYPE, "sentence_transformers.models.Pooling"), "Pooling is not supported"),
        ("pylate", modules(TRANSFORMER_TYPE, "pylate.models.Router"), "Router is not supported"),
        ("pylate", modules(TRANSFORMER_TYPE, "own.Dense"), "own.Dense is code of the repository"),
        ("pylate", module(0, path="encoder"), "must be in the checkpoint's root"),
        ("pylate", fields("1_Dense/config.json", in_features=48), "in_features is 48, and the module before has 64"),
        ("pylate", fields("1_Dense/config.json", activation_function="own.Swish"), "activation_function is own.Swish"),
        ("pylate", fields("1_Dense/config.json", module_input_name="sentence_embedding"), "module_input_name"),
        ("pylate", fields("1_Dense/config.json", use_residual=True), "residual.weight"),
        ("native-three-dense", fields("3_Dense/config.json", use_residual=False), "residual.weight"),
        ("native-three-dense", fields("4_MultiVectorMask/config.json", keep_only_token_ids=[5]), "keep_only_token_ids"),
        ("native-three-dense", fields("4_MultiVectorMask/config.json", skiplist_tasks=["title"]), "skiplist_tasks"),
        (
            "native-three-dense",
            fields("5_Normalize/config.json", module_input_name="sentence_embedding"),
            "module_input_name",
        ),
        ("pylate", without_tensor("layers.2.mlp.Wi.weight"), "layers.2.mlp.Wi.weight is missing"),
        ("pylate", without_tensor("linear.weight", "1_Dense/model.safetensors"), "1_Dense/model.safetensors: holds"),
    ],
)
def test_a_checkpoint_that_would_be_served_differently_is_refused(
    checkpoint: str, change: Change, says: str, tmp_path: Path
) -> None:
    published, target = tiny.build(checkpoint, tmp_path), tmp_path / "model"
    target.mkdir()
    change(published)
    with pytest.raises(PrepareError, match=says):
        CHECKPOINT.convert(published, {}, target)


class Files(list[SourceFile]):
    """A source's files; config.json holds ``config``."""

    config: Any = None

    def read(self, path: str) -> bytes | None:
        return json.dumps(self.config).encode() if path == CONFIG and self.config is not None else None


@pytest.mark.parametrize(
    ("paths", "config", "error", "says"),
    [
        (
            (CONFIG, "artifact.metadata"),
            {"architectures": ["HF_ColBERT"], "model_type": "bert"},
            Unsupported,
            'model_type is "bert".*"modernbert"',
        ),
        ((CONFIG, "artifact.metadata"), {"architectures": ["ModernBertModel"]}, Unsupported, "not name HF_ColBERT"),
        (("gliner_config.json",), None, Unsupported, "GLiNER"),
        ((CONFIG, WEIGHTS), {}, SourceFileNotFound, MODULES),
    ],
)
def test_other_formats_are_refused_by_name(paths: tuple[str, ...], config: Any, error: type, says: str) -> None:
    files = Files(SourceFile(path=path, size=1) for path in paths)
    files.config = config
    with pytest.raises(error, match=says):
        CHECKPOINT.files(files)


def test_conversion_leaves_the_published_files_as_they_are(tmp_path: Path) -> None:
    published, model = tiny.build("pylate-no-expansion", tmp_path), tmp_path / "model"
    model.mkdir()
    before = manifest.tree_digest(published)
    CHECKPOINT.convert(published, {}, model)
    assert manifest.tree_digest(published) == before
    # the head for masked words is left out
    assert not any(name.startswith(("head.", "decoder.", "model.")) for name in load_file(model / WEIGHTS))
    assert json.loads((model / CONFIG).read_text())["architectures"] == ["ModernColbertModel"]
    served = read_served(model)
    assert (served.expansion, served.query.most_tokens, len(served.skiplist)) == (None, 24, 2)
    assert CHECKPOINT.engine_settings(model, "cpu").max_model_len == 48


def test_pylates_defaults_hold_where_a_checkpoint_leaves_them_open(tmp_path: Path) -> None:
    published, model = tiny.build("pylate", tmp_path), tmp_path / "model"
    model.mkdir()
    library = json.loads((published / LIBRARY).read_text())
    for name in ("query_length", "skiplist_words", "do_query_expansion", "attend_to_expansion_tokens", "model_type"):
        library.pop(name)
    # null is the same
    library |= {"document_length": None, "document_prefix": None}
    (published / LIBRARY).write_text(json.dumps(library))
    CHECKPOINT.convert(published, {}, model)
    served = read_served(model)
    assert served.expansion is not None
    assert (served.expansion.length, served.expansion.attend, len(served.skiplist)) == (32, False, 32)
    assert (served.document.most_tokens, served.document.prompt) == (180, "[D] ")
