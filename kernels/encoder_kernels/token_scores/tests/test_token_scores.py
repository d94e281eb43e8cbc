# mypy: disable-error-code="no-untyped-call, call-arg, misc, arg-type"
from __future__ import annotations

import pytest
import torch

from encoder_kernels.token_scores import Layers, token_scores


def straightforward(factors, layers, pairs):  # type: ignore[no-untyped-def]
    """Return the logits of pairs of rows in float64."""
    word, label, word_factor, label_factor = (tensor.double().cpu() for tensor in factors)
    product, out, bias = (tensor.double().cpu() for tensor in layers)
    rows = [
        out @ torch.relu(product @ (word_factor[one] * label_factor[other]) + word[one] + label[other]) + bias
        for one, other in pairs
    ]
    return torch.stack(rows) if rows else torch.empty(0, 3, dtype=torch.float64)


def drawn(form, words: int, labels: int, inner: int, size: int):  # type: ignore[no-untyped-def]
    """Return what words and labels have, and the layers; the last layer's matrix is a part of a wider one, as in a model."""
    factors = (form.randn(words, inner), form.randn(labels, inner), form.randn(words, size), form.randn(labels, size))
    wide = form.randn(inner, 3 * size) / size**0.5
    return factors, Layers(wide[:, 2 * size :], form.randn(3, inner) / inner**0.5, form.randn(3))


@pytest.mark.parametrize(("inner", "size"), [(64, 16), (300, 75)])
@pytest.mark.parametrize("tile", [5, None])
@pytest.mark.parametrize(
    ("words", "labels"), [([5], [3]), ([4, 0, 13, 1], [2, 1, 9, 5]), ([3, 3, 2], [0, 11, 1]), ([0], [2]), ([], [])]
)
def test_every_pair_of_a_text(any_form, close, words, labels, tile, inner, size) -> None:  # type: ignore[no-untyped-def]
    factors, layers = drawn(any_form, sum(words), sum(labels), inner, size)
    word_offsets, label_offsets = any_form.offsets(words), any_form.offsets(labels)
    counts = [one * other for one, other in zip(words, labels, strict=True)]
    found = token_scores(
        *factors, layers, word_offsets, label_offsets, any_form.offsets(counts), pairs=sum(counts), tile=tile
    )
    pairs = [
        (int(word_offsets[text]) + word, int(label_offsets[text]) + label)
        for text, (of_text, of_labels) in enumerate(zip(words, labels, strict=True))
        for word in range(of_text)
        for label in range(of_labels)
    ]
    assert found.dtype == (torch.float64 if any_form.dtype == torch.float64 else torch.float32)
    expected = straightforward(factors, layers, pairs)
    assert found.shape == expected.shape
    # the matrix product's results are of the inputs' type
    close(found.to(any_form.dtype), expected)


def test_texts_that_share_labels(form, close) -> None:  # type: ignore[no-untyped-def]
    factors, layers = drawn(form, 7, 4, 32, 8)
    rows = [3, 0, 0, 2, 3]
    found = token_scores(
        *factors,
        layers,
        form.offsets([5, 2]),
        form.offsets([2, 3]),
        form.offsets([10, 6]),
        pairs=16,
        label_rows=torch.tensor(rows, dtype=torch.int32, device=form.device),
    )
    pairs = [(word, row) for word in range(5) for row in rows[:2]] + [
        (word, row) for word in (5, 6) for row in rows[2:]
    ]
    close(found.to(form.dtype), straightforward(factors, layers, pairs))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("label", lambda one: one[:, 1:]),
        ("word_factor", lambda one: one[1:]),
        ("label_factor", lambda one: one.to(torch.float16)),
        ("word_offsets", lambda one: one.long()),
        ("pair_offsets", lambda one: one[1:]),
        ("label_offsets", lambda one: one[None]),
        ("pairs", lambda one: -1),
        ("tile", lambda one: 0),
        ("layers.out", lambda one: one[:2]),
    ],
)
def test_what_does_not_fit_is_refused_by_name(form, name, change) -> None:  # type: ignore[no-untyped-def]
    factors, layers = drawn(form, 3, 2, 16, 4)
    arguments = dict(zip(("word", "label", "word_factor", "label_factor"), factors, strict=True))
    arguments |= {"layers": layers, "word_offsets": form.offsets([3]), "label_offsets": form.offsets([2])}
    arguments |= {"pair_offsets": form.offsets([6]), "pairs": 6, "tile": 4}
    if name == "layers.out":
        arguments["layers"] = layers._replace(out=change(layers.out))
    else:
        arguments[name] = change(arguments[name])
    with pytest.raises(ValueError, match=rf"^{name}: "):
        token_scores(**arguments)
