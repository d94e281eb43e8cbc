# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The token scorer in Triton: what stands before and behind the product of matrices that each pair goes through, which is cuBLAS's.

A tile of pairs is three launches: the products of words and labels, one row for each pair; the matrix product; and the sums, the activation
and the last layer, which read each inner row once. Which word and label a pair has is found once for all tiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from encoder_kernels.token_scores import Layers

# pairs that are computed at once: 126 MB of rows for a head of width 768 in 16 bits; twice as many gain 4 %
TILE = 16_384


# these come as parts of one copy, wherever in it: aligned or not, it must be the same compiled kernel
@triton.jit(
    do_not_specialize=["texts", "steps", "pairs"],
    do_not_specialize_on_alignment=["word_offsets", "label_offsets", "pair_offsets", "label_rows", "words", "labels"],
)
def pair_places_kernel(
    word_offsets,
    label_offsets,
    pair_offsets,
    label_rows,
    words,
    labels,
    texts,
    steps,
    pairs,
    HAS_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the rows of the word and of the label of some pairs."""
    numbers = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = numbers < pairs
    # the last text whose first pair is not behind this one: texts without pairs begin where the next one does
    text = tl.zeros([BLOCK], tl.int32)
    end = tl.zeros([BLOCK], tl.int32) + texts
    for _ in range(steps):
        middle = (text + end) // 2
        fits = tl.load(pair_offsets + middle) <= numbers
        text = tl.where(fits, middle, text)
        end = tl.where(fits, end, middle)
    first = tl.load(label_offsets + text)
    count = tl.maximum(tl.load(label_offsets + text + 1) - first, 1)
    within = tl.where(inside, numbers - tl.load(pair_offsets + text), 0)
    row = first + within % count
    if HAS_ROWS:
        row = tl.load(label_rows + row, mask=inside, other=0)
    tl.store(words + numbers, tl.load(word_offsets + text) + within // count, mask=inside)
    tl.store(labels + numbers, row, mask=inside)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["words", "labels"])
def pair_products_kernel(
    word_factor,
    label_factor,
    words,
    labels,
    products,
    word_row,
    label_row,
    size,
    count,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Write one tile of the products of words and labels, `[pairs, size]`."""
    numbers = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = numbers < count
    word = tl.load(words + numbers, mask=inside, other=0).to(tl.int64)
    label = tl.load(labels + numbers, mask=inside, other=0).to(tl.int64)
    mask = inside[:, None] & (columns < size)[None, :]
    left = tl.load(word_factor + word[:, None] * word_row + columns[None, :], mask=mask, other=0.0)
    right = tl.load(label_factor + label[:, None] * label_row + columns[None, :], mask=mask, other=0.0)
    product = left.to(tl.float32) * right.to(tl.float32)
    target = products + numbers.to(tl.int64)[:, None] * size + columns[None, :]
    tl.store(target, product.to(products.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["words", "labels", "logits"])
def token_scores_kernel(
    inner,
    word,
    label,
    words,
    labels,
    out,
    out_bias,
    logits,
    word_row,
    label_row,
    out_row,
    size,
    count,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Write the three logits of some pairs from their inner rows, which still lack what a word and a label add."""
    numbers = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    inside = numbers < count
    of_word = tl.load(words + numbers, mask=inside, other=0).to(tl.int64) * word_row
    of_label = tl.load(labels + numbers, mask=inside, other=0).to(tl.int64) * label_row
    of_pair = numbers.to(tl.int64) * size
    columns = tl.arange(0, BLOCK_N)
    start = tl.zeros([BLOCK_P, BLOCK_N], tl.float32)
    end = tl.zeros([BLOCK_P, BLOCK_N], tl.float32)
    within = tl.zeros([BLOCK_P, BLOCK_N], tl.float32)
    for offset in range(0, size, BLOCK_N):
        fits = columns < size - offset
        mask = inside[:, None] & fits[None, :]
        value = tl.load(inner + of_pair[:, None] + offset + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        value += tl.load(word + of_word[:, None] + offset + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        value += tl.load(label + of_label[:, None] + offset + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        value = tl.maximum(value, 0.0)
        weight = out + offset + columns
        start += value * tl.load(weight, mask=fits, other=0.0).to(tl.float32)[None, :]
        end += value * tl.load(weight + out_row, mask=fits, other=0.0).to(tl.float32)[None, :]
        within += value * tl.load(weight + 2 * out_row, mask=fits, other=0.0).to(tl.float32)[None, :]
    target = logits + numbers.to(tl.int64) * 3
    tl.store(target, tl.sum(start, 1) + tl.load(out_bias).to(tl.float32), mask=inside)
    tl.store(target + 1, tl.sum(end, 1) + tl.load(out_bias + 1).to(tl.float32), mask=inside)
    tl.store(target + 2, tl.sum(within, 1) + tl.load(out_bias + 2).to(tl.float32), mask=inside)


PLACES = {"BLOCK": 256, "num_warps": 4}
PRODUCTS = {"BLOCK_P": 8, "BLOCK_N": 256, "num_warps": 4}
# the fastest of 33 settings on an H200, by a tenth of all three launches
SCORES = {"BLOCK_P": 32, "BLOCK_N": 128, "num_warps": 8}


def launch(
    factors: tuple[torch.Tensor, ...],
    layers: Layers,
    places: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None],
    logits: torch.Tensor,
    tile: int | None = None,
) -> None:
    """Write the logits of all pairs, at least one; arguments as in ``token_scores``, in its order."""
    word, label, word_factor, label_factor = factors
    word_offsets, label_offsets, pair_offsets, label_rows = places
    pairs, texts, (inner_size, size) = logits.shape[0], word_offsets.shape[0] - 1, layers.product.shape
    words, labels = torch.empty((2, pairs), dtype=torch.int32, device=word.device).unbind(0)
    pair_places_kernel[(triton.cdiv(pairs, PLACES["BLOCK"]),)](
        word_offsets,
        label_offsets,
        pair_offsets,
        label_rows,
        words,
        labels,
        texts,
        max(texts - 1, 0).bit_length(),
        pairs,
        HAS_ROWS=label_rows is not None,
        **PLACES,
    )
    most = min(pairs, tile or TILE)
    products = torch.empty((most, size), dtype=word.dtype, device=word.device)
    inner = torch.empty((most, inner_size), dtype=word.dtype, device=word.device)
    for begin in range(0, pairs, most):
        count = min(most, pairs - begin)
        own = (words[begin : begin + count], labels[begin : begin + count])
        pair_products_kernel[(triton.cdiv(count, PRODUCTS["BLOCK_P"]), triton.cdiv(size, PRODUCTS["BLOCK_N"]))](
            word_factor,
            label_factor,
            *own,
            products,
            word_factor.stride(0),
            label_factor.stride(0),
            size,
            count,
            **PRODUCTS,
        )
        torch.mm(products[:count], layers.product.t(), out=inner[:count])
        token_scores_kernel[(triton.cdiv(count, SCORES["BLOCK_P"]),)](
            inner,
            word,
            label,
            *own,
            layers.out,
            layers.out_bias,
            logits[begin : begin + count],
            word.stride(0),
            label.stride(0),
            layers.out.stride(0),
            inner_size,
            count,
            **SCORES,
        )
