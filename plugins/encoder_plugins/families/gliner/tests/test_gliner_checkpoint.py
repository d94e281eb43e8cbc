"""What gliner_config.json may say, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from encoder_checkpoints import gliner as builder
from encoder_plugins.errors import RemoteCodeRefused, SourceFileNotFound, Unsupported
from encoder_plugins.families.gliner import checkpoint, words
from encoder_plugins.models.deberta_gliner.checkpoint import CHECKPOINT
from encoder_plugins.models.mmbert_gliner.checkpoint import CHECKPOINT as MMBERT_CHECKPOINT
from encoder_plugins.models.modernbert_gliner_rerank.checkpoint import CHECKPOINT as RERANK_CHECKPOINT
from encoder_plugins.models.mt5_gliner.checkpoint import CHECKPOINT as MT5_CHECKPOINT

DEBERTA, MMBERT, MT5 = CHECKPOINT.spec, MMBERT_CHECKPOINT.spec, MT5_CHECKPOINT.spec
RERANK = RERANK_CHECKPOINT.spec

ENCODER = {"model_type": "deberta-v2", "hidden_size": 768}


def test_an_empty_configuration_means_what_it_means_to_the_library() -> None:
    found = checkpoint.parse({})
    assert (found.hidden_size, found.max_width, found.max_words, found.lstm_layers) == (512, 12, 384, 1)
    assert (found.class_token, found.separator_token) == ("<<ENT>>", "<<SEP>>")
    assert found.embed_class_token
    assert (found.class_token_id, found.rows, found.encoder) == (None, None, None)
    assert found.base == "microsoft/deberta-v3-small"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model_type", "gliner_streaming_span"),
        ("model_type", "gliner_uni_encoder_token"),
        ("span_mode", "token-level"),
        ("span_mode", "markerV1"),
        ("span_mode", "conv_conv"),
        ("words_splitter_type", "spacy"),
        ("words_splitter_type", "universal"),
        ("subtoken_pooling", "mean"),
        ("fuse_layers", True),
        ("post_fusion_schema", "l2l-l2t"),
        ("span_encoder_config", {"model_type": "rnn"}),
        ("labels_encoder", "BAAI/bge-small-en-v1.5"),
        ("labels_encoder_config", {"model_type": "bert"}),
        ("labels_decoder", "gpt2"),
        ("labels_decoder_config", {}),
        ("decoder_config", {"model_type": "gpt2"}),
        ("relations_layer", "dot"),
        ("triples_layer", "distmult"),
        ("represent_spans", True),
        ("precomputed_prompts_mode", True),
        ("encoder_config", "microsoft/deberta-v3-small"),
        ("hidden_size", 0),
        ("hidden_size", "512"),
        ("hidden_size", 511),
        ("max_width", "wide"),
        ("max_len", 12.5),
        ("max_len", 10**9),
        ("max_width", 10**9),
        ("num_rnn_layers", -2),
        ("num_rnn_layers", True),
        ("has_rnn", "yes"),
        # the library ignores this field, and would compute with an LSTM of random weights
        ("has_rnn", False),
        ("embed_ent_token", 1),
        ("max_len", None),
        ("max_width", None),
        ("ent_token", None),
        ("hidden_size", None),
        ("num_rnn_layers", None),
        ("ent_token", ""),
        ("sep_token", ["<<SEP>>"]),
        ("class_token_index", -2),
        ("vocab_size", "250112"),
    ],
)
def test_a_value_that_would_be_served_differently_is_refused_with_its_name_and_itself(name: str, value: Any) -> None:
    with pytest.raises(Unsupported, match=name) as error:
        checkpoint.parse({name: value})
    assert json.dumps(value) in str(error.value)


@pytest.mark.parametrize("splitter", sorted(words.REFUSED))
def test_another_splitter_is_refused_with_the_reason_and_the_parameter(splitter: str) -> None:
    with pytest.raises(Unsupported, match="words_splitter_type") as error:
        checkpoint.parse({"words_splitter_type": splitter})
    assert f"{splitter}: {words.REFUSED[splitter]}. " in str(error.value)
    assert str(error.value).endswith("(--parameter wordsSplitter=whitespace)")


def test_a_splitter_that_the_library_does_not_know_has_no_advice() -> None:
    for unknown in ("wordpiece", None, ["stanza"]):
        with pytest.raises(Unsupported, match=r'supported: "whitespace"$'):
            checkpoint.parse({"words_splitter_type": unknown})


@pytest.mark.parametrize(
    ("values", "layers"),
    [
        ({}, 1),
        ({"has_rnn": True}, 1),
        ({"num_rnn_layers": 0}, 0),
        ({"num_rnn_layers": -1}, 0),
        ({"num_rnn_layers": 2}, 2),
        ({"num_rnn_layers": 1, "has_rnn": False}, 1),
    ],
)
def test_the_number_of_lstm_layers_is_read_as_the_library_reads_it(values: dict[str, Any], layers: int) -> None:
    found = checkpoint.parse(values)
    assert found.lstm_layers == layers


def test_words_are_scored_without_a_widest_span() -> None:
    assert checkpoint.parse({"span_mode": "token_level", "max_width": None}).max_width == 12


def test_keys_of_training_are_nobodys_business() -> None:
    checkpoint.parse({"lr_encoder": 1e-5, "name": "correct", "random_drop": True, "max_types": 25, "dropout": 0.4})


@pytest.mark.parametrize(
    ("values", "rows"),
    [
        ({"vocab_size": 128_004, "class_token_index": 128_002}, 128_004),
        ({"vocab_size": -1, "class_token_index": 128_002}, None),
        ({"vocab_size": 128_004, "class_token_index": -1}, None),
    ],
)
def test_the_tokenizer_decides_over_the_embedding_unless_both_ids_are_there(values: Any, rows: int | None) -> None:
    assert checkpoint.parse(values).rows == rows


def test_an_encoder_of_another_family_is_refused_with_the_one_that_is_served() -> None:
    settings = checkpoint.parse({"encoder_config": ENCODER})
    for spec in (MMBERT, MT5):
        with pytest.raises(Unsupported, match="deberta-v2") as error:
            checkpoint.encoder_config(settings, {}, spec)
        assert spec.model_type in str(error.value)
    assert checkpoint.encoder_config(settings, {}, DEBERTA) == ENCODER


def test_an_encoder_without_a_type_is_deberta_as_in_the_library() -> None:
    settings = checkpoint.parse({"encoder_config": {"hidden_size": 8}})
    assert checkpoint.encoder_config(settings, {}, DEBERTA)["model_type"] == "deberta-v2"


@pytest.mark.parametrize(
    ("spec", "name", "value"),
    [
        (DEBERTA, "conv_kernel_size", 3),
        (DEBERTA, "hidden_act", "swish"),
        (MMBERT, "hidden_activation", "silu"),
        (MT5, "feed_forward_proj", "relu"),
        (MT5, "is_decoder", True),
    ],
)
def test_a_switch_of_the_encoder_that_is_not_served_is_refused(spec: Any, name: str, value: Any) -> None:
    settings = checkpoint.parse({"encoder_config": {"model_type": spec.model_type, name: value}})
    with pytest.raises(Unsupported, match=name) as error:
        checkpoint.encoder_config(settings, {}, spec)
    assert json.dumps(value) in str(error.value)


@pytest.mark.parametrize(
    ("spec", "mode", "message"),
    [
        (
            MMBERT,
            "token_level",
            'is "token_level"; mmbert_gliner serves "markerV0"; the plugin modernbert_gliner_rerank serves',
        ),
        (
            RERANK,
            "markerV0",
            'is "markerV0"; modernbert_gliner_rerank serves "token_level"; the plugin mmbert_gliner serves',
        ),
        (MT5, "token_level", 'is "token_level"; mt5_gliner serves "markerV0"$'),
    ],
)
def test_a_head_that_another_plugin_serves_is_refused_with_its_name(spec: Any, mode: str, message: str) -> None:
    settings = checkpoint.parse({"span_mode": mode, "encoder_config": {"model_type": spec.model_type}})
    with pytest.raises(Unsupported, match=message):
        checkpoint.encoder_config(settings, {}, spec)


def test_of_an_encoder_of_another_plugin_the_one_with_the_same_head_is_named() -> None:
    settings = checkpoint.parse({"span_mode": "token_level", "encoder_config": {"model_type": "deberta-v2"}})
    with pytest.raises(Unsupported, match="the plugin deberta_gliner serves this one"):
        checkpoint.encoder_config(settings, {}, RERANK)
    assert checkpoint.encoder_config(settings, {}, DEBERTA)["model_type"] == "deberta-v2"


def test_code_of_a_repository_is_refused() -> None:
    settings = checkpoint.parse({"encoder_config": {**ENCODER, "auto_map": {"AutoModel": "x.Y"}}})
    with pytest.raises(RemoteCodeRefused):
        checkpoint.encoder_config(settings, {}, DEBERTA)


def write(folder: Path, name: str, content: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content, encoding="utf-8")
    return folder


def test_a_missing_encoder_says_which_repository_to_pin_and_how(tmp_path: Path) -> None:
    folder = write(tmp_path, checkpoint.CONFIG, json.dumps({"model_name": "org/base"}))
    with pytest.raises(SourceFileNotFound, match="encoder_config") as error:
        CHECKPOINT.check(folder, {})
    assert "source.auxiliary: [{repo: org/base, revision: <commit>}]" in str(error.value)
    assert "--auxiliary org/base@<commit>" in str(error.value)


def test_a_missing_tokenizer_says_so_too(tmp_path: Path) -> None:
    folder = write(tmp_path, checkpoint.CONFIG, json.dumps({"model_name": "org/base", "encoder_config": ENCODER}))
    with pytest.raises(SourceFileNotFound, match=r"tokenizer_config\.json"):
        CHECKPOINT.check(folder, {})
    # without that file the library goes to the other repository, whatever else there is
    write(folder, "tokenizer.json", "{}")
    with pytest.raises(SourceFileNotFound, match=r"tokenizer_config\.json"):
        CHECKPOINT.check(folder, {})


def test_of_several_repositories_the_named_one_is_taken(tmp_path: Path) -> None:
    right, wrong = (write(tmp_path / name, "config.json", json.dumps({**ENCODER, "name": name})) for name in "rw")
    settings = checkpoint.parse({"model_name": "org/base"})
    found = checkpoint.encoder_config(settings, {"org/other": wrong, "org/base": right}, DEBERTA)
    assert found["name"] == "r"
    # a mirror may call it otherwise
    assert checkpoint.encoder_config(settings, {"mirror/base": right}, DEBERTA)["name"] == "r"
    with pytest.raises(SourceFileNotFound, match="org/other, org/third"):
        checkpoint.encoder_config(settings, {"org/other": wrong, "org/third": wrong}, DEBERTA)


@pytest.mark.parametrize("content", ["", "[]", "{", '"text"'])
def test_a_configuration_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(Unsupported, match=r"gliner_config\.json"):
        checkpoint.read(write(tmp_path, checkpoint.CONFIG, content))


def test_a_folder_without_configuration_is_no_checkpoint_of_gliner(tmp_path: Path) -> None:
    with pytest.raises(SourceFileNotFound, match=r"gliner_config\.json is missing"):
        checkpoint.read(tmp_path)


@pytest.mark.parametrize(("words", "tokens"), [(12, 3072), (384, 4096), (1024, 7168)])
def test_the_context_holds_the_words_and_several_hundred_labels(words: int, tokens: int) -> None:
    assert checkpoint.context(words) == tokens
    assert tokens - 4 * words >= 2500


@pytest.mark.parametrize("distances", [-1, 0])
def test_as_many_distances_as_positions_are_those_of_the_encoder(tmp_path: Path, distances: int) -> None:
    published = builder.build(tmp_path / "published", "deberta_gliner", encoder={"max_relative_positions": distances})
    (tmp_path / "model").mkdir()
    CHECKPOINT.convert(published, {}, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text(encoding="utf-8"))
    # not those of the context that is served
    assert (config["max_relative_positions"], config["max_position_embeddings"]) == (128, 3072)
