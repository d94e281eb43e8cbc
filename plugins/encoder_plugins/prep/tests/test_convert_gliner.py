"""What conversion makes of GLiNER checkpoints as users publish them, and which it refuses."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from encoder_plugins import catalog
from encoder_plugins.errors import NotServable, SourceFileNotFound, Unsupported
from encoder_plugins.families.gliner.config import KEY, GlinerConfig
from encoder_plugins.families.gliner.tests.library import call
from encoder_plugins.plugin import resolve
from encoder_plugins.prep.checkpoint import SourceFile
from encoder_plugins.prep.tests.changed_checkpoint import WEIGHTS, Build, change, rewrite

with warnings.catch_warnings():
    # torch deprecates what transformers does at import
    warnings.simplefilter("ignore")
    import sentencepiece

    from encoder_checkpoints import gliner as builder
    from encoder_checkpoints.vocabularies import SENTENCES

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]
PLUGINS = builder.PLUGINS
SPAN = "span_rep_layer.span_rep_layer.out_project.3.weight"
POSITIONS = "token_rep_layer.bert_layer.model.embeddings.position_ids"


class Listed:
    """A listing without content."""

    def __init__(self, *paths: str, config: dict[str, Any] | None = None) -> None:
        self.paths, self.config = paths, config

    def __iter__(self) -> Iterator[SourceFile]:
        return iter([SourceFile(path=path, size=1) for path in self.paths])

    def read(self, path: str) -> bytes | None:
        return json.dumps(self.config or {}).encode()


def test_the_tied_tables_of_mt5_are_written_once(copied: Callable[[str], Path], converted: Build) -> None:
    source = copied("mt5_gliner")
    table, other = (
        f"token_rep_layer.bert_layer.model.{name}" for name in ("shared.weight", "encoder.embed_tokens.weight")
    )
    # as a pickle, or any other file that keeps both
    rewrite(source, lambda tensors: tensors.update({other: tensors[table].clone()}))
    target = converted(source, "mt5_gliner")
    with safe_open(target / WEIGHTS, framework="numpy") as tensors:
        assert table in tensors.keys()  # noqa: SIM118 - it is no dictionary
        assert other not in tensors.keys()  # noqa: SIM118


def test_tied_tables_that_differ_are_refused(copied: Callable[[str], Path], converted: Build) -> None:
    source = copied("mt5_gliner")
    table, other = (
        f"token_rep_layer.bert_layer.model.{name}" for name in ("shared.weight", "encoder.embed_tokens.weight")
    )
    rewrite(source, lambda tensors: tensors.update({other: tensors[table] + 1}))
    with pytest.raises(Unsupported, match=r"embed_tokens\.weight"):
        converted(source, "mt5_gliner")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"class_token_index": 2002}, r"class_token_index is 2002, .* and the tokenizer has '<<ENT>>' at 2001"),
        ({"class_token_index": 7}, r"class_token_index is 7"),
        ({"vocab_size": 2004}, r"vocab_size is 2004, and .*word_embeddings\.weight has 2003 rows"),
        ({"ent_token": "<<E>>"}, r"class_token_index|<<E>>"),
        ({"hidden_size": 128}, r"requires \["),
        ({"hidden_size": 96}, r"projection\.weight are surplus, which nothing would read"),
        ({"num_rnn_layers": 0}, r"rnn\.lstm"),
        ({"num_rnn_layers": ..., "has_rnn": False}, r"has_rnn is false, which gliner 0\.2\.29 ignores"),
        ({"num_rnn_layers": 2}, r"rnn\.lstm\.\w+_l1"),
        ({"encoder_config": {"model_type": "modernbert"}}, "the plugin mmbert_gliner serves this one"),
    ],
)
def test_pieces_that_do_not_belong_together_are_refused_by_name(
    values: dict[str, Any], named: str, copied: Callable[[str], Path], converted: Build
) -> None:
    source = copied("deberta_gliner")
    change(source, **values)
    with pytest.raises(Unsupported, match=named):
        converted(source)


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda tensors: tensors.pop(SPAN), SPAN),
        (lambda tensors: tensors.pop("rnn.lstm.weight_hh_l0_reverse"), "weight_hh_l0_reverse"),
        (lambda tensors: tensors.pop("token_rep_layer.projection.bias"), r"projection\.bias"),
        (lambda tensors: tensors.update({"scorer.weight": torch.zeros(2)}), r"scorer\.weight"),
        (lambda tensors: tensors.update({SPAN: tensors[SPAN][:, :-1].contiguous()}), SPAN),
        (lambda tensors: tensors.update({SPAN: tensors[SPAN].to(torch.int8)}), "I8"),
        (lambda tensors: tensors.clear(), "word embeddings"),
    ],
)
def test_weights_that_are_not_exactly_those_of_the_configuration_are_refused_by_name(
    edit: Callable[[dict[str, torch.Tensor]], Any], named: str, copied: Callable[[str], Path], converted: Build
) -> None:
    source = copied("deberta_gliner")
    rewrite(source, edit)
    with pytest.raises(Unsupported, match=named):
        converted(source)


def test_weights_under_another_name_are_not_what_the_library_loads(
    copied: Callable[[str], Path], converted: Build
) -> None:
    source = copied("deberta_gliner")
    (source / WEIGHTS).rename(source / "other.safetensors")
    with pytest.raises(SourceFileNotFound, match=r"model\.safetensors"):
        converted(source)


def test_a_file_of_weights_that_is_none_is_refused(copied: Callable[[str], Path], converted: Build) -> None:
    source = copied("deberta_gliner")
    (source / WEIGHTS).write_bytes(b"no tensors")
    with pytest.raises(Unsupported, match=r"model\.safetensors"):
        converted(source)


def test_what_older_versions_wrote_beside_is_left_behind(copied: Callable[[str], Path], converted: Build) -> None:
    source = copied("deberta_gliner")
    rewrite(source, lambda tensors: tensors.update({POSITIONS: torch.arange(128)[None]}))
    with safe_open(converted(source) / WEIGHTS, framework="numpy") as tensors:
        assert POSITIONS not in tensors.keys()  # noqa: SIM118 - it is no dictionary


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_half_the_size_stay_as_they_are(
    dtype: torch.dtype, copied: Callable[[str], Path], converted: Build
) -> None:
    source = copied("mmbert_gliner")
    rewrite(source, lambda tensors: tensors.update({name: value.to(dtype) for name, value in tensors.items()}))
    target = converted(source, "mmbert_gliner")
    assert {tensor.dtype for tensor in load_file(target / WEIGHTS).values()} == {dtype}


def test_the_fields_of_old_versions_mean_the_same(copied: Callable[[str], Path], converted: Build) -> None:
    source = copied("deberta_gliner")
    # what today's library writes and a version of 2024 did not
    newer = ("num_rnn_layers", "embed_ent_token", "subtoken_pooling", "represent_spans", "span_encoder_config")
    changes: dict[str, Any] = {"has_rnn": True, **dict.fromkeys(newer, ...)}
    change(source, **changes)
    served = json.loads((converted(source) / "config.json").read_bytes())[KEY]
    assert (served["lstm_layers"], served["embed_class_token"]) == (1, True)


def test_a_checkpoint_without_lstm_is_served_without(converted: Build, tmp_path: Path) -> None:
    source = builder.build(tmp_path / "plain", "deberta_gliner", num_rnn_layers=0)
    assert json.loads((converted(source) / "config.json").read_bytes())[KEY]["lstm_layers"] == 0


def test_tokens_are_added_only_where_the_library_adds_them(old: tuple[Path, Path], converted: Build) -> None:
    source, base = old
    # with both ids given, the library takes the tokenizer as it is, and finds no class token in it
    change(source, class_token_index=2001, vocab_size=2003)
    with pytest.raises(Unsupported, match="ent_token is '<<ENT>>', which the tokenizer does not know"):
        converted(source, auxiliary={"example/deberta-v3": base})


def test_a_tokenizer_that_outgrows_the_embedding_is_refused(copied: Callable[[str], Path], converted: Build) -> None:
    source = copied("deberta_gliner")
    table = "token_rep_layer.bert_layer.model.embeddings.word_embeddings.weight"
    rewrite(source, lambda tensors: tensors.update({table: tensors[table][:-1].contiguous()}))
    change(source, vocab_size=2002)
    with pytest.raises(Unsupported, match="ids up to 2002, and the embedding only 2002 rows"):
        converted(source)


def test_rows_beyond_the_tokenizer_are_fine(converted: Build, tmp_path: Path) -> None:
    source = builder.build(tmp_path / "padded", "mt5_gliner", vocab_size=2048)
    with safe_open(source / WEIGHTS, framework="numpy") as tensors:
        assert tensors.get_slice("token_rep_layer.bert_layer.model.shared.weight").get_shape()[0] == 2048
    assert json.loads((converted(source, "mt5_gliner") / "config.json").read_bytes())["vocab_size"] == 2048


def test_a_sentencepiece_model_alone_is_turned_into_a_fast_tokenizer(
    copied: Callable[[str], Path], converted: Build, tmp_path: Path
) -> None:
    source = copied("deberta_gliner")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (source / name).unlink()
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(SENTENCES * 20), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(source / "spm"),
        vocab_size=300,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        pad_piece="[PAD]",
        bos_piece="[CLS]",
        eos_piece="[SEP]",
        unk_piece="[UNK]",
        minloglevel=2,
    )
    (source / "spm.vocab").unlink()
    about = {"tokenizer_class": "DebertaV2Tokenizer", "do_lower_case": False}
    (source / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")
    # [MASK] comes behind the pieces, and then the library's own: 304 in all
    change(source, class_token_index=..., vocab_size=...)
    table = "token_rep_layer.bert_layer.model.embeddings.word_embeddings.weight"
    rewrite(source, lambda tensors: tensors.update({table: tensors[table][:304].contiguous()}))
    target = converted(source)
    served = json.loads((target / "config.json").read_bytes())[KEY]
    assert (served["class_token_id"], served["separator_token_id"]) == (302, 303)
    assert (target / "tokenizer.json").is_file()


def test_a_tokenizer_that_cannot_be_read_is_refused(copied: Callable[[str], Path], converted: Build) -> None:
    source = copied("deberta_gliner")
    (source / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(Unsupported, match="tokenizer"):
        converted(source)


def test_positions_keep_their_meaning_when_the_context_grows(
    published: Callable[[str], Path], converted: Build
) -> None:
    served = json.loads((converted(published("deberta_gliner")) / "config.json").read_bytes())
    # -1 stood for the encoder's own number of positions, which the buckets of long distances are made of
    assert served["max_relative_positions"] == 128
    assert served["max_position_embeddings"] == 3072


def test_absolute_positions_are_as_many_as_there_are(converted: Build, tmp_path: Path) -> None:
    source = builder.build(tmp_path / "absolute", "deberta_gliner", encoder={"position_biased_input": True})
    assert json.loads((converted(source) / "config.json").read_bytes())["max_position_embeddings"] == 128


# a bi-encoder's tensors are those of two encoders, which its own tests compare
@pytest.mark.parametrize("plugin", [name for name in PLUGINS if builder.FAMILIES[name].labels is None])
def test_the_layout_that_the_engine_loads_has_the_tensors_of_the_library(
    plugin: str, published: Callable[[str], Path]
) -> None:
    from encoder_plugins.families.gliner import checkpoint, conversion

    spec = resolve(catalog.get(plugin).checkpoint).spec
    settings = checkpoint.read(published(plugin))
    encoder = conversion.read_encoder(spec, settings, checkpoint.encoder_config(settings, {}, spec))
    described = call("describe", str(published(plugin)))
    names = call("parameters", str(published(plugin)))
    head = described["config"] | {"projection": "token_rep_layer.projection.weight" in names}
    layout = conversion.expected_layout(spec, encoder, GlinerConfig.from_dict(head))
    assert {**{name: list(shape) for name, shape in layout.shapes.items()}} == {
        name: shape for name, shape in names.items() if name not in layout.aliases
    }


@pytest.mark.parametrize(
    ("plugin", "encoder", "named"),
    [
        ("deberta_gliner", {"num_attention_heads": 5}, "num_attention_heads"),
        ("deberta_gliner", {"hidden_size": "96"}, "hidden_size"),
        ("deberta_gliner", {"position_buckets": 512}, "buckets|max_distance|max_relative_positions"),
        ("deberta_gliner", {"position_biased_input": True, "max_position_embeddings": 64}, "max_len is 120"),
        ("mmbert_gliner", {"num_attention_heads": 3}, "num_attention_heads"),
        ("mmbert_gliner", {"max_position_embeddings": 100}, "max_len is 120"),
        ("mmbert_gliner", {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0}}}, "rope"),
        ("mmbert_gliner", {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}}, "rope"),
        ("mt5_gliner", {"relative_attention_num_buckets": 31}, "buckets"),
        ("mt5_gliner", {"d_kv": "32"}, "d_kv"),
    ],
)
def test_an_encoder_that_the_engine_would_refuse_is_refused_before_its_weights_are_downloaded(
    plugin: str, encoder: dict[str, Any], named: str, copied: Callable[[str], Path]
) -> None:
    source = copied(plugin)
    config = json.loads((source / "gliner_config.json").read_bytes())
    change(source, encoder_config=config["encoder_config"] | encoder)
    (source / WEIGHTS).unlink()
    with pytest.raises(Unsupported, match=named):
        resolve(catalog.get(plugin).checkpoint).check(source, {})


def test_a_tokenizer_that_cuts_at_the_left_is_refused_if_it_cuts(copied: Callable[[str], Path]) -> None:
    source = copied("deberta_gliner")
    change(source, "tokenizer_config.json", truncation_side="left")
    check = resolve(catalog.get("deberta_gliner").checkpoint).check
    check(source, {})
    change(source, "tokenizer_config.json", model_max_length=512)
    with pytest.raises(Unsupported, match="truncation_side"):
        check(source, {})


@pytest.mark.parametrize(
    ("listing", "kind", "named"),
    [
        (
            Listed("config.json", "encoder_config/config.json", config={"model_type": "extractor"}),
            Unsupported,
            "GLiNER2",
        ),
        (Listed("config.json", "model.safetensors"), SourceFileNotFound, r"gliner_config\.json is missing"),
        (Listed("modules.json", "model.safetensors"), Unsupported, "sentence_transformer serves it"),
        (Listed("gliner_config.json", "model.onnx"), Unsupported, r"ONNX only \(model\.onnx\)"),
        (Listed("gliner_config.json", "model.safetensors", "adapter_config.json"), Unsupported, "adapter"),
    ],
)
def test_other_formats_are_refused_by_their_name(listing: Listed, kind: type[Exception], named: str) -> None:
    with pytest.raises(kind, match=named):
        resolve(catalog.get("deberta_gliner").checkpoint).files(listing)


def test_the_engine_settings_are_those_of_the_converted_checkpoint(
    published: Callable[[str], Path], converted: Build
) -> None:
    target = converted(published("deberta_gliner"))
    settings = resolve(catalog.get("deberta_gliner").checkpoint).engine_settings(target, "cpu")
    assert (settings.max_model_len, settings.batch_tokens) == (3072, 3072)
    assert "--no-enable-chunked-prefill" in settings.arguments


def test_a_head_size_that_the_accelerator_lacks_is_refused_when_serving_starts(tmp_path: Path) -> None:
    sizes = {"hidden_size": 312, "num_attention_heads": 12, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "modernbert", **sizes}), encoding="utf-8")
    mmbert, deberta = (resolve(catalog.get(name).checkpoint) for name in ("mmbert_gliner", "deberta_gliner"))
    with pytest.raises(NotServable, match="26 wide"):
        mmbert.engine_settings(tmp_path, "cpu")
    assert mmbert.engine_settings(tmp_path, "nvidia").max_model_len == 512
    # its attention is ours, and takes any
    assert deberta.engine_settings(tmp_path, "cpu").max_model_len == 512
