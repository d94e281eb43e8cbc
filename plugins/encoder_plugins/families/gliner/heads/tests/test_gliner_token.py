"""The token head against gliner's own forward pass, on the same weights and the same encoder rows."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

with warnings.catch_warnings():
    # vLLM warns of itself when it is imported
    warnings.simplefilter("ignore")
    from encoder_plugins.backbones import weight_loading
    from encoder_plugins.families.gliner import payload
    from encoder_plugins.families.gliner.config import GlinerConfig
    from encoder_plugins.families.gliner.heads.layout import head_layout
    from encoder_plugins.families.gliner.heads.tests.compared_heads import Library, answers_of, config
    from encoder_plugins.families.gliner.heads.tests.library_head import ENCODER, text
    from encoder_plugins.families.gliner.heads.token import GlinerTokenPooler
    from encoder_plugins.families.gliner.heads.token_head import token_head
    from encoder_plugins.families.gliner.payload import encode, encode_texts

pytestmark = pytest.mark.filterwarnings("ignore")

# the labels of one are more than those of another, and the words of one all without tokens
TEXTS = [
    text(7, 3, seed=1),
    text(1, 1, seed=2),
    text(23, 6, seed=3),
    text(9, 2, lost=4, seed=4),
    text(3, 5, lost=3, seed=5),
    text(60, 1, seed=6),
]
SETTINGS: dict[str, dict[str, Any]] = {
    "published": {},
    "no LSTM": {"lstm_layers": 0},
    "labels behind the class token": {"embed_class_token": False},
    "no projection": {"projection": False, "hidden_size": ENCODER},
}


def pooler(library: Library, settings: GlinerConfig) -> GlinerTokenPooler:
    ours = GlinerTokenPooler(ENCODER, settings)
    weight_loading.load(ours.head, library.tensors().items(), head_layout(ENCODER, settings))
    return ours


@pytest.mark.parametrize("switches", SETTINGS.values(), ids=SETTINGS.keys())
def test_logits_are_gliners(switches: dict[str, Any]) -> None:
    settings = config(head="token", **switches)
    library = Library(settings)
    found = answers_of(pooler(library, settings), TEXTS, [one.extra(0.0) for one in TEXTS])
    for rows, expected in zip(found, library.logits(*TEXTS), strict=True):
        words, labels, _ = expected.shape
        word, label = np.divmod(np.arange(words * labels), labels)
        assert (rows[:, :2] == np.stack([word, label], 1)).all()
        np.testing.assert_allclose(rows[:, 2:], expected.reshape(-1, 3), atol=2e-5)


@pytest.mark.parametrize("threshold", [0.3, 0.6, 1.0])
def test_only_words_that_may_be_inside_come_back(threshold: float) -> None:
    settings = config(head="token")
    library = Library(settings)
    found = answers_of(pooler(library, settings), TEXTS, [one.extra(threshold) for one in TEXTS])
    for rows, expected in zip(found, library.logits(*TEXTS), strict=True):
        inside = torch.sigmoid(expected[..., 2]).numpy()
        assert rows.dtype == np.float32
        assert rows.flags.c_contiguous
        got = {(int(word), int(label)) for word, label in rows[:, :2]}
        # what is next to the threshold may be there or not
        assert {(int(w), int(c)) for w, c in np.argwhere(inside > threshold + 1e-5)} <= got
        assert got <= {(int(w), int(c)) for w, c in np.argwhere(inside > threshold - 1e-5)}


def test_texts_of_one_request_and_odd_requests_do_not_disturb_each_other() -> None:
    settings = config(head="token")
    ours = pooler(Library(settings), settings)
    several = [TEXTS[2], TEXTS[0]]
    items = [payload.decode(one.extra(0.2))[0] for one in several]  # type: ignore[index]
    joined = type(several[0])(torch.cat([one.ids for one in several]), [])
    extra = encode_texts(items, [len(one.ids) for one in several])
    # positions beyond the text, and no request of ours
    odd = [encode([1000], [1], 0.5), {"words": "no bytes"}]
    given = [TEXTS[1], joined, TEXTS[3], TEXTS[5]]
    found = answers_of(ours, given, [odd[0], extra, odd[1], TEXTS[5].extra(0.2)])
    assert (len(found[0]), len(found[2])) == (0, 0)
    # rows depend on where a token stands in its prompt: each text is compared as it stands in this one
    words = np.array([len(one.words) for one in several])
    assert set(found[1][:, 0].astype(int)) <= set(range(words.sum()))
    assert (found[1][:, 0] >= words[0]).any()
    alone = answers_of(ours, [TEXTS[5]], [TEXTS[5].extra(0.2)])
    np.testing.assert_allclose(found[3], alone[0], atol=1e-5)


@pytest.mark.parametrize("represents", [False, True])
def test_every_tensor_fills_a_part_of_its_own(represents: bool) -> None:
    settings = config(head="token", represent_spans=represents)
    head = token_head(ENCODER, settings)
    for parameter in head.parameters():
        parameter.data.fill_(torch.nan)
    loaded = weight_loading.load(head, Library(settings).tensors().items(), head_layout(ENCODER, settings))
    assert loaded == {name for name, _ in head.named_parameters()}
    left = {name: int(parameter.isnan().sum()) for name, parameter in head.named_parameters()}
    # the half of the bias that is for ends stays as it is made: zero
    assert {name: count for name, count in left.items() if count} == (
        {"span_in.bias": 4 * settings.hidden_size} if represents else {}
    )


@pytest.mark.parametrize("represents", [False, True])
def test_a_warm_up_runs_every_form_of_the_head(represents: bool) -> None:
    ours = GlinerTokenPooler(ENCODER, config(head="token", represent_spans=represents))
    ours.warm_up(torch.randn(512, ENCODER))
    assert ours._warm
