# mypy: disable-error-code="no-untyped-call, call-arg, misc, arg-type"
from __future__ import annotations

import pytest
import torch

from encoder_kernels.dispatch import INTERPRETED
from encoder_kernels.relative_bias_attention import reference, relative_bias_attention, t5_bias

LENGTHS = {
    "one": [37],
    "mixed": [1, 0, 65, 2, 0, 70, 64, 33, 0],
    "empty": [],
    "nothing": [0, 0],
    "many": [(7 * n) % 23 + 1 for n in range(64)],
    "long": [2000, 3],
}


def run(form, close, lengths, heads=2, head_size=32, limit=20, window=None, keys=None, causal=False, group=1):  # type: ignore[no-untyped-def]
    tokens = sum(lengths) + 2
    sizes = (heads, heads // group, heads // group)
    query, key, value = form.randn(tokens, sum(sizes), head_size).split(sizes, 1)
    bias = None if limit is None else torch.randn(heads, 2 * limit + 1, device=form.device)
    cu_seqlens = form.offsets(lengths)
    counts = lengths if keys is None else keys
    for end, length, seen in zip(cu_seqlens.tolist()[1:], lengths, counts, strict=True):
        # what is no key is never read
        key[end - length + seen : end] = value[end - length + seen : end] = float("nan")
    out = form.poisoned(tokens, heads, head_size)
    result = relative_bias_attention(
        query,
        key,
        value,
        bias,
        cu_seqlens,
        max(lengths, default=0),
        scale=0.2,
        window=window,
        causal=causal,
        key_lengths=None if keys is None else torch.tensor(keys, dtype=torch.int32).to(form.device),
        out=out,
    )
    assert result is out
    expected = torch.zeros(tokens - 2, heads, head_size, dtype=torch.float64)
    start = 0
    for length, seen in zip(lengths, counts, strict=True):
        q, k, v = (tensor[start : start + length].double().cpu().transpose(0, 1) for tensor in (query, key, value))
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        distances = torch.arange(seen)[None, :] - torch.arange(length)[:, None]
        scores = 0.2 * q @ k[:, :seen].transpose(1, 2)
        if bias is not None:
            scores = scores + bias.double().cpu()[:, distances.clamp(-limit, limit) + limit]
        if window is not None:
            scores = scores.masked_fill(distances.abs() > window, float("-inf"))
        if causal:
            scores = scores.masked_fill(distances > 0, float("-inf"))
        expected[start : start + length] = (scores.softmax(-1).nan_to_num() @ v[:, :seen]).transpose(0, 1)
        start += length
    close(out[:-2], expected)
    assert out[-2:].isnan().all()


@pytest.mark.parametrize("lengths", [name for name in LENGTHS if not (INTERPRETED and name in ("long", "many"))])
def test_every_batch(form, close, lengths: str) -> None:  # type: ignore[no-untyped-def]
    run(form, close, LENGTHS[lengths])


@pytest.mark.parametrize("limit", [0, 1, 2, 130])
def test_blocks_of_keys_that_are_all_beyond_the_limit(form, close, limit: int) -> None:  # type: ignore[no-untyped-def]
    """The nearest pair of two neighbouring blocks is 1 apart, whatever their sizes: all of their pairs are at a limit of 1, and not at 2."""
    run(form, close, [19, 130] if form.small else [19, 300], heads=1, limit=limit)


@pytest.mark.parametrize("limit", [None, 20], ids=["no bias", "bias"])
@pytest.mark.parametrize("window", [None, 0, 7, 64])
def test_every_window(form, close, window: int | None, limit: int | None) -> None:  # type: ignore[no-untyped-def]
    run(form, close, [19, 130] if form.small else [19, 300, 66], heads=1, limit=limit, window=window)


@pytest.mark.parametrize("window", [None, 40, 7], ids=["global", "wide", "narrow"])
def test_tokens_that_are_queries_only_are_read_as_keys_by_nobody(form, close, window: int | None) -> None:  # type: ignore[no-untyped-def]
    # with the narrow window the last rows see no key at all
    run(form, close, [32, 32, 5, 100], heads=1, limit=None if window else 20, window=window, keys=[32, 9, 1, 33])


@pytest.mark.parametrize("keys", [None, [32, 9, 1, 1, 33]], ids=["all are keys", "queries only"])
@pytest.mark.parametrize(("limit", "window"), [(None, None), (20, None), (None, 7)], ids=["plain", "bias", "window"])
def test_causal_attention_sees_no_key_behind_a_token(  # type: ignore[no-untyped-def]
    form, close, keys: list[int] | None, limit: int | None, window: int | None
) -> None:
    run(form, close, [32, 32, 5, 1, 100], heads=1, limit=limit, window=window, keys=keys, causal=True)


@pytest.mark.parametrize("group", [2, 4])
def test_heads_of_queries_share_heads_of_keys(form, close, group: int) -> None:  # type: ignore[no-untyped-def]
    run(form, close, [19, 70], heads=4, limit=20 if group == 2 else None, group=group)


@pytest.mark.parametrize("head_size", [32, 64, 80, 96, 128])
def test_every_head_size(any_form, close, head_size: int) -> None:  # type: ignore[no-untyped-def]
    run(any_form, close, [19, 66], heads=1, head_size=head_size)


@pytest.mark.skipif(INTERPRETED, reason="the reference's own memory bound")
def test_heads_that_are_computed_in_parts_use_their_own_bias(form, close, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(reference, "_ELEMENTS", 2 * 40**2)
    # parts of two heads, of two heads, and of one; with and without padding
    run(form, close, [40, 3], heads=5)
    run(form, close, [40], heads=5)


@pytest.mark.skipif(INTERPRETED, reason="no kernel is involved")
@pytest.mark.parametrize("buckets", [4, 6, 8, 16, 20, 22, 32, 64, 128, 256])
def test_bias_is_transformers(buckets: int) -> None:
    from transformers.models.mt5.modeling_mt5 import MT5Attention

    distances = torch.arange(-3000, 3001)
    # a value of its own for every bucket and head
    table = torch.arange(buckets)[:, None] + torch.tensor([0.25, 0.5])
    for farthest in {buckets // 4 + 1, buckets, 20, 40, 100, 128, 160, 400, 1000, 2048}:
        if farthest <= buckets // 4:
            continue
        bias = t5_bias(table, max_distance=farthest)
        limit = bias.shape[1] // 2
        theirs = table[MT5Attention._relative_position_bucket(distances, True, buckets, farthest)].t()
        assert torch.equal(bias[:, distances.clamp(-limit, limit) + limit], theirs), farthest


@pytest.mark.skipif(INTERPRETED, reason="float64 needs the reference")
def test_against_transformers_module() -> None:
    from transformers import MT5Config
    from transformers.models.mt5.modeling_mt5 import MT5Attention

    config = MT5Config(d_model=96, d_kv=32, num_heads=3, is_encoder_decoder=False)
    module = MT5Attention(config, has_relative_attention_bias=True).double().eval()
    torch.nn.init.normal_(module.relative_attention_bias.weight)
    torch.nn.init.eye_(module.o.weight)
    hidden = torch.randn(2, 150, 96, dtype=torch.float64)
    with torch.no_grad():
        for projection in (module.q, module.k, module.v):
            torch.nn.init.normal_(projection.weight, std=0.1)
        theirs = module(hidden, position_bias=module.compute_bias(150, 150))[0].view(300, 3, 32)
        query, key, value = (projection(hidden).view(300, 3, 32) for projection in (module.q, module.k, module.v))
    offsets = torch.tensor([0, 150, 300], dtype=torch.int32)
    ours = relative_bias_attention(query, key, value, t5_bias(module.relative_attention_bias.weight), offsets, 150)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


def test_arguments_are_refused_by_name() -> None:
    qkv, offsets = torch.randn(6, 3, 2, 32).unbind(1), torch.tensor([0, 6], dtype=torch.int32)
    for bias in (torch.randn(2, 40), torch.randn(3, 41), torch.randn(2, 41).half(), torch.randn(41, 2).t()):
        with pytest.raises(ValueError, match=r"^bias: "):
            relative_bias_attention(*qkv, bias, offsets, 6)
    with pytest.raises(ValueError, match=r"^max_seqlen: "):
        relative_bias_attention(*qkv, torch.randn(2, 41), offsets, -1)
    with pytest.raises(ValueError, match=r"^window: "):
        relative_bias_attention(*qkv, None, offsets, 6, window=-1)
    with pytest.raises(ValueError, match=r"^key_lengths: "):
        relative_bias_attention(*qkv, None, offsets, 6, key_lengths=offsets)
    with pytest.raises(ValueError, match=r"^table: "):
        t5_bias(torch.randn(5, 2))
    with pytest.raises(ValueError, match=r"^max_distance: "):
        t5_bias(torch.randn(32, 2), max_distance=8)
