"""What prep refuses of a checkpoint on BERT, what it reads of Stanford's format, and which tokens a text becomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from encoder_checkpoints.answer_cache import library_answer
from encoder_plugins.errors import InvalidRequest, PrepareError, Unsupported
from encoder_plugins.families.retrieval.cases import TEXTS
from encoder_plugins.families.retrieval.checkpoint import read_served
from encoder_plugins.families.retrieval.config import Expansion, InputType
from encoder_plugins.families.retrieval.limits import LIMITS
from encoder_plugins.families.retrieval.processor import MultiVectorProcessor
from encoder_plugins.families.retrieval.tokens import TextTokenizer
from encoder_plugins.models.colbert.checkpoint import CHECKPOINT
from encoder_plugins.models.colbert.tests import tiny
from encoder_plugins.plugin import POOLING
from encoder_plugins.prep.checkpoint import SourceFile
from encoder_plugins.serving.processor import ServingContext

# torch and transformers warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore")

ORACLE = "encoder_plugins.families.retrieval.tests.oracle:tokens"
CONFIG, METADATA, WEIGHTS = "config.json", "artifact.metadata", "model.safetensors"


def converted(name: str, folder: Path) -> tuple[Path, Path]:
    """Build and convert a tiny checkpoint; return where both are."""
    published, model = tiny.build(name, folder), folder / "model"
    model.mkdir()
    CHECKPOINT.convert(published, {}, model)
    return published, model


@pytest.mark.parametrize(
    ("checkpoint", "file", "changed", "says"),
    [
        ("stanford", CONFIG, {"model_type": "electra"}, 'model_type is "electra".*bert.*xlm-roberta'),
        # as jina-colbert-v2 has it
        (
            "stanford",
            CONFIG,
            {"model_type": "xlm-roberta", "position_embedding_type": "rotary"},
            "position_embedding_type='rotary'",
        ),
        ("stanford", CONFIG, {"is_decoder": True}, "is_decoder"),
        (
            "stanford",
            CONFIG,
            {"hidden_size": 32},
            r"linear.weight is \(32, 64\); expected is one of \[dimensions, 32\]",
        ),
        ("stanford", METADATA, {"doc_maxlen": 129}, "artifact.metadata: texts have up to 129 tokens.* only 128"),
        ("stanford", METADATA, {"query_maxlen": 3}, "query_maxlen is 3"),
        ("stanford", METADATA, {"attend_to_mask_tokens": "no"}, "attend_to_mask_tokens"),
        ("stanford", METADATA, {"mask_punctuation": 2}, "mask_punctuation"),
        ("stanford", METADATA, {"query_token_id": 1}, "query_token_id"),
        ("stanford", "config_sentence_transformers.json", {"model_type": "ColBERT"}, "is of another one"),
        ("pylate", CONFIG, {"architectures": ["ElectraModel"]}, "architectures is .*ElectraModel"),
        ("pylate", CONFIG, {"architectures": 1}, "architectures is 1"),
        ("pylate", CONFIG, {"architectures": [["BertModel"]]}, "architectures is "),
        ("pylate", CONFIG, {"architectures": ["BertColbertModel"]}, "architectures"),
        ("xlm-roberta", CONFIG, {"pad_token_id": 0}, "pad_token_id=0"),
        (
            "xlm-roberta",
            "sentence_bert_config.json",
            {"query_expansion": {"strategy": "min", "length": 20, "token": "<pad>"}},
            "token is <pad>, which has no position",
        ),
        ("xlm-roberta", CONFIG, {"type_vocab_size": 2}, r"token_type_embeddings.weight is \(1, 64\)"),
    ],
)
def test_a_checkpoint_that_would_be_served_differently_is_refused(
    checkpoint: str, file: str, changed: dict[str, Any], says: str, tmp_path: Path
) -> None:
    published = tiny.build(checkpoint, tmp_path)
    path = published / file
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**before, **changed}))
    (tmp_path / "model").mkdir()
    with pytest.raises(PrepareError, match=says):
        CHECKPOINT.convert(published, {}, tmp_path / "model")


def test_a_tokenizer_that_gives_tokens_another_type_is_refused(tmp_path: Path) -> None:
    published = tiny.build("pylate", tmp_path)
    path = published / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["post_processor"]["single"][1]["Sequence"]["type_id"] = 1
    path.write_text(json.dumps(tokenizer))
    # that of BERT would have types of its own, which are 0
    fields = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "token_type_ids"]}
    path = published / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    (tmp_path / "model").mkdir()
    with pytest.raises(Unsupported, match=r"tokenizer\.json: post_processor gives tokens of a text the type_id 1"):
        CHECKPOINT.convert(published, {}, tmp_path / "model")


def test_a_projection_that_is_missing_is_named(tmp_path: Path) -> None:
    published = tiny.build("stanford", tmp_path)
    tensors = load_file(published / WEIGHTS)
    del tensors["linear.weight"]
    save_file(tensors, published / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(Unsupported, match=r"linear.weight is missing"):
        CHECKPOINT.check(published, {})


class Files(list[SourceFile]):
    """The files of a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            SourceFile(path=str(path.relative_to(folder)), size=path.stat().st_size)
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        )
        self.folder = folder

    def read(self, path: str) -> bytes | None:
        return (self.folder / path).read_bytes() if (self.folder / path).is_file() else None


def test_the_settings_of_stanfords_format_are_downloaded_and_checked_before_the_weights(tmp_path: Path) -> None:
    published = tiny.build("stanford", tmp_path)
    (published / WEIGHTS).rename(published / "pytorch_model.bin")
    selected = CHECKPOINT.files(Files(published))
    assert METADATA in {file.path for file in selected.files}
    assert [file.path for file in selected.pickles] == ["pytorch_model.bin"]
    _, settings = CHECKPOINT.read(published)
    assert settings.projection[0].outputs == tiny.STANFORD["dim"]
    # without the architecture, the library would draw a projection
    config = json.loads((published / CONFIG).read_text())
    (published / CONFIG).write_text(json.dumps({**config, "architectures": ["BertModel"]}))
    with pytest.raises(Unsupported, match="architectures does not name HF_ColBERT"):
        CHECKPOINT.files(Files(published))


def test_what_stanfords_settings_leave_open_is_what_the_library_takes(tmp_path: Path) -> None:
    published, model = tiny.build("stanford", tmp_path), tmp_path / "model"
    (published / METADATA).unlink()
    model.mkdir()
    CHECKPOINT.convert(published, {}, model)
    served = read_served(model)
    assert served.expansion == Expansion(length=32, token_id=4, attend=False)
    assert (served.query.prompt, served.document.prompt) == ("[unused0] ", "[unused1] ")
    assert (served.document.most_tokens, len(served.skiplist), served.dimensions) == (128, 32, 32)
    (found,) = TextTokenizer(model, served)(["bread?"], "document")
    ((ids, _, kept),) = library_answer("sentence_transformers", ORACLE, str(published), ["bread?"], "document")
    assert (found.ids, [True] * len(ids) if found.kept is None else found.kept.tolist()) == (ids, kept)


def test_the_fields_of_the_encoder_may_be_in_each_file_that_the_library_reads(tmp_path: Path) -> None:
    published, model = tiny.build("pylate", tmp_path), tmp_path / "model"
    model.mkdir()
    (published / "sentence_bert_config.json").write_text("{}")
    (published / "sentence_xlm-roberta_config.json").write_text('{"document_length": 12, "do_lower_case": true}')
    CHECKPOINT.convert(published, {}, model)
    text = "The Bread and the Gardens " * 8
    (found,) = TextTokenizer(model, read_served(model))([text], "document")
    ((ids, _, _),) = library_answer("sentence_transformers", ORACLE, str(published), [text], "document")
    assert (found.ids, len(found.ids)) == (ids, 12)


@pytest.mark.parametrize(
    ("file", "field"),
    [
        ("config_sentence_transformers.json", "query_length"),
        ("config_sentence_transformers.json", "document_length"),
        ("sentence_roberta_config.json", "max_seq_length"),
    ],
)
def test_a_length_is_refused_by_the_file_that_has_it(file: str, field: str, tmp_path: Path) -> None:
    published = tiny.build("pylate", tmp_path)
    (published / "sentence_bert_config.json").unlink()
    before = json.loads((published / file).read_text()) if (published / file).exists() else {}
    (published / file).write_text(json.dumps({**before, field: 2}))
    with pytest.raises(Unsupported, match=f"{file}: {field} is 2"):
        CHECKPOINT.check(published, {})


def test_a_limit_of_tokens_beyond_the_positions_is_refused_where_texts_are_cut_by_it(tmp_path: Path) -> None:
    pylate, own = tiny.build("pylate", tmp_path), tiny.build(tiny.XLM_ROBERTA, tmp_path)
    for published in (pylate, own):
        (published / "sentence_bert_config.json").write_text('{"max_seq_length": 129}')
    # PyLate's format has a length of its own: what the file says, or PyLate's 180
    CHECKPOINT.check(pylate, {})
    library = json.loads((pylate / "config_sentence_transformers.json").read_text())
    (pylate / "config_sentence_transformers.json").write_text(json.dumps({**library, "document_length": None}))
    with pytest.raises(
        Unsupported, match=r"config_sentence_transformers.json: .* up to 180 tokens, .* only 128 positions"
    ):
        CHECKPOINT.check(pylate, {})
    with pytest.raises(Unsupported, match=r"sentence_bert_config.json: max_seq_length is 129, .* only 128 positions"):
        CHECKPOINT.check(own, {})
    (own / "sentence_bert_config.json").write_text('{"max_seq_length": 128}')
    CHECKPOINT.check(own, {})


def test_a_text_with_the_token_that_positions_leave_out_is_refused(tmp_path: Path) -> None:
    _, model = converted("xlm-roberta", tmp_path)
    defaults = {limit.name: limit.default for limit in LIMITS}
    served = MultiVectorProcessor(ServingContext(model=model, max_model_len=64, names=("m",), limits=defaults))
    for data in ({"text": "a <pad> b", "input_type": "document"}, {"query": "a", "documents": ["b", "a <pad> b"]}):
        with pytest.raises(InvalidRequest, match="padding token") as caught:
            served.parse(POOLING, json.dumps({"model": "m", "data": data}).encode())
        assert caught.value.param in ("data.text", "data.documents[1]")


@pytest.mark.parametrize("name", [one.name for one in tiny.TINY])
def test_tokens_are_those_of_the_library(name: str, tmp_path: Path) -> None:
    published, model = converted(name, tmp_path)
    tokenizer = TextTokenizer(model, read_served(model))
    texts = [
        *TEXTS.values(),
        *("a " * count for count in range(1, 70)),
        *("[Q]", "[unused0]", "[UNUSED1] text", "[unused0][unused1]", "[unused2] is no marker", "[MASK] [MASK]"),
    ]
    kinds: tuple[InputType, ...] = ("query", "document")
    for kind in kinds:
        expected: list[Any] = library_answer("sentence_transformers", ORACLE, str(published), texts, kind)
        for text, found, (ids, attended, kept) in zip(texts, tokenizer(texts, kind), expected, strict=True):
            assert found.ids == ids, (kind, text)
            assert attended == [1] * found.keys + [0] * (len(ids) - found.keys), (kind, text)
            assert ([True] * len(ids) if found.kept is None else found.kept.tolist()) == kept, (kind, text)
