"""GLiNER's token scorer over a packed batch: the logits of every pair of a word and a label of the same text."""

from __future__ import annotations

from typing import NamedTuple

import torch

from encoder_kernels import checks
from encoder_kernels.dispatch import runs_triton
from encoder_kernels.token_scores import reference

__all__ = ["Layers", "token_scores"]


class Layers(NamedTuple):
    """The learned part.

    Attributes:
        product: `[inner, size]`: what the products of words and labels go through.
        out: `[3, inner]`: the last layer.
        out_bias: `[3]`.
    """

    product: torch.Tensor
    out: torch.Tensor
    out_bias: torch.Tensor


def token_scores(
    word: torch.Tensor,
    label: torch.Tensor,
    word_factor: torch.Tensor,
    label_factor: torch.Tensor,
    layers: Layers,
    word_offsets: torch.Tensor,
    label_offsets: torch.Tensor,
    pair_offsets: torch.Tensor,
    *,
    pairs: int,
    label_rows: torch.Tensor | None = None,
    tile: int | None = None,
) -> torch.Tensor:
    """Return the logits of "starts here", "ends here" and "is inside" for each pair of a word and a label of one text.

    ``logit[i, c] = out · relu(product (word_factor_i * label_factor_c) + word_i + label_c) + out_bias``. That is ``Scorer``'s inner layer
    with its matrix split by what it is applied to: ``W [t1; l1; t2 * l2] + b = A t1 + (B l1 + b) + C (t2 * l2)`` has ``word = A t1``,
    ``label = B l1 + b`` and ``product = C``; only the last one is computed for each pair. The products go through a matrix product of
    the inputs' type, and the sums behind it are in float32.

    Args:
        word: `[words, inner]`, all texts' words one behind the other.
        label: `[labels, inner]`.
        word_factor: `[words, size]`.
        label_factor: `[labels, size]`.
        layers: The learned part, of the inputs' type.
        word_offsets: `[texts + 1]` int32 on the device: where each text's words begin, and the end of the last.
        label_offsets: `[texts + 1]` int32 on the device, likewise.
        pair_offsets: `[texts + 1]` int32 on the device: the number of each text's first pair, and the end of the last; a text has as many
            as its words times its labels.
        pairs: Of all texts.
        label_rows: `[labels of all texts]` int32 on the device: the row of each text's labels in ``label`` and ``label_factor``; None where
            they are all texts' labels one behind the other.
        tile: Pairs that are computed at once, which bounds the memory; None takes what is fastest.

    Returns:
        `[pairs, 3]` float32 (float64 for float64), by text, then word, then label.

    Raises:
        ValueError: When an argument's shape, type or device does not fit; the message begins with its name.

    Source: GLiNER's ``Scorer`` and ``UniEncoderTokenModel``; Zaratiana et al., "GLiNER: Generalist Model for Named Entity Recognition using
    Bidirectional Transformer".
    """
    checks.floating("word", word, 2)
    inner, size = word.shape[1], word_factor.shape[-1]
    for name, tensor, shape in (
        ("label", label, (label.shape[0], inner)),
        ("word_factor", word_factor, (word.shape[0], size)),
        ("label_factor", label_factor, (label.shape[0], size)),
        ("layers.product", layers.product, (inner, size)),
        ("layers.out", layers.out, (3, inner)),
        ("layers.out_bias", layers.out_bias, (3,)),
    ):
        checks.shaped(name, tensor, shape)
        checks.like(name, tensor, word)
        checks.dense_columns(name, tensor)
    checks.dense_columns("word", word)
    checks.index("word_offsets", word_offsets, word)
    if word_offsets.shape[0] < 1:
        raise ValueError("word_offsets: expected texts + 1 entries, found none")
    for name, offsets in (("label_offsets", label_offsets), ("pair_offsets", pair_offsets)):
        checks.index(name, offsets, word)
        checks.shaped(name, offsets, tuple(word_offsets.shape))
    if label_rows is not None:
        checks.index("label_rows", label_rows, word)
    for name, number, least in (("pairs", pairs, 0), ("tile", 1 if tile is None else tile, 1)):
        if number < least:
            raise ValueError(f"{name}: expected at least {least}, found {number}")
    exact = torch.float64 if word.dtype == torch.float64 else torch.float32
    logits = torch.empty((pairs, 3), dtype=exact, device=word.device)
    if not pairs:
        return logits
    factors = (word, label, word_factor, label_factor)
    if runs_triton(word):
        from encoder_kernels.token_scores import kernel

        kernel.launch(factors, layers, (word_offsets, label_offsets, pair_offsets, label_rows), logits, tile)
    else:
        reference.scores(factors, layers, (word_offsets, label_offsets, label_rows), logits, tile)
    return logits
