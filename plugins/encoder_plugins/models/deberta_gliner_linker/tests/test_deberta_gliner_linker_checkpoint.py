"""Which checkpoints are refused, by field, and where what is not in one is taken from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins.errors import SourceFileNotFound, Unsupported
from encoder_plugins.models.deberta_gliner_linker.checkpoint import CHECKPOINT

ENCODER = {
    "model_type": "deberta",
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 64,
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": ["c2p", "p2c"],
}
CONFIG = {
    "model_name": "example/deberta",
    "labels_encoder": "example/labels",
    "span_mode": "token_level",
    "hidden_size": 64,
    "encoder_config": ENCODER,
    "labels_encoder_config": ENCODER,
}
MODERNBERT = {
    "model_type": "modernbert",
    "hidden_size": 64,
    "num_attention_heads": 2,
    # global and local ones: a configuration has to have both
    "num_hidden_layers": 3,
    "intermediate_size": 64,
}
DEBERTA_V3 = {**ENCODER, "model_type": "deberta-v2", "position_buckets": 32, "max_position_embeddings": 128}
BERT = {
    "model_type": "bert",
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 64,
}
# what a span bi-encoder has differently
SPANS = {"span_mode": "markerV0", "encoder_config": MODERNBERT, "labels_encoder_config": BERT}


def write(folder: Path, **fields: Any) -> Path:
    """Write a checkpoint's configuration files."""
    (folder / "labels_tokenizer").mkdir(parents=True)
    for place in (folder, folder / "labels_tokenizer"):
        (place / "tokenizer_config.json").write_text("{}")
    (folder / "gliner_config.json").write_text(json.dumps({**CONFIG, **fields}))
    return folder


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model_type": "gliner_bi_encoder_token"},
        {"represent_spans": True},
        {"represent_spans": None},
        SPANS,
        {**SPANS, "model_type": "gliner_bi_encoder_span"},
        {**SPANS, "encoder_config": DEBERTA_V3},
    ],
)
def test_a_bi_encoder_is_accepted(fields: dict[str, Any], tmp_path: Path) -> None:
    CHECKPOINT.check(write(tmp_path / "checkpoint", **fields), {})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"labels_encoder": None}, "labels_encoder is null"),
        ({"labels_encoder": 3}, "labels_encoder is 3"),
        ({"labels_encoder_config": [1]}, "labels_encoder_config is"),
        ({"labels_encoder_config": {**ENCODER, "model_type": "bert"}}, 'model_type is "bert"'),
        ({"labels_encoder_config": {**ENCODER, "talking_head": True}}, "labels_encoder_config.*talking_head"),
        ({"encoder_config": {**ENCODER, "talking_head": True}}, "deberta: talking_head=True"),
        (
            {"encoder_config": DEBERTA_V3},
            'is "deberta-v2" with span_mode "token_level".*serves "deberta" with "token_level"',
        ),
        ({"span_mode": "markerV0"}, 'is "deberta" with span_mode "markerV0"'),
        ({"span_mode": "markerV1"}, 'span_mode is "markerV1"'),
        ({**SPANS, "labels_encoder_config": ENCODER}, 'serves "bert" beside an encoder of texts of type "modernbert"'),
        ({**SPANS, "labels_encoder_config": {**BERT, "is_decoder": True}}, "labels_encoder_config.*is_decoder"),
        ({**SPANS, "encoder_config": {**MODERNBERT, "hidden_activation": "relu"}}, "hidden_activation"),
        ({**SPANS, "encoder_config": {**DEBERTA_V3, "conv_kernel_size": 3}}, "conv_kernel_size"),
        ({**SPANS, "encoder_config": {**MODERNBERT, "max_position_embeddings": 100}}, "max_len is 384"),
        ({**SPANS, "model_type": "gliner_bi_encoder_token"}, "contradict"),
        ({"model_type": "gliner_bi_encoder_span"}, "contradict"),
        ({"represent_spans": 1}, "represent_spans is 1, which is not supported; supported: false, null, true"),
        ({**SPANS, "represent_spans": True}, "represent_spans is true"),
        # the library makes an LSTM of that many layers
        ({"num_rnn_layers": -1}, "num_rnn_layers is -1"),
        ({"post_fusion_schema": "l2l-l2t-t2t"}, "post_fusion_schema"),
        ({"model_type": "gliner_uni_encoder_token"}, "model_type is"),
        ({"words_splitter_type": "spacy"}, "words_splitter_type.*wordsSplitter"),
    ],
)
def test_what_would_be_served_differently_is_refused_by_field(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(Unsupported, match=message):
        CHECKPOINT.check(write(tmp_path / "checkpoint", **fields), {})


def test_what_the_checkpoint_lacks_comes_from_the_repository_that_it_names(tmp_path: Path) -> None:
    folder = write(tmp_path / "checkpoint", labels_encoder_config=None)
    with pytest.raises(SourceFileNotFound, match=r"no labels_encoder_config.*example/labels.*pin that one"):
        CHECKPOINT.check(folder, {})
    auxiliary = tmp_path / "labels"
    auxiliary.mkdir()
    (auxiliary / "config.json").write_text(json.dumps(ENCODER))
    CHECKPOINT.check(folder, {"example/labels": auxiliary})
    (folder / "labels_tokenizer" / "tokenizer_config.json").unlink()
    CHECKPOINT.check(folder, {"example/labels": auxiliary})
    other = write(tmp_path / "other")
    (other / "labels_tokenizer" / "tokenizer_config.json").unlink()
    with pytest.raises(SourceFileNotFound, match=r"no labels_tokenizer/tokenizer_config.json.*example/labels"):
        CHECKPOINT.check(other, {})
