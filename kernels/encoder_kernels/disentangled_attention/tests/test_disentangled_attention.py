# mypy: disable-error-code="no-untyped-call, call-arg, misc, arg-type"
from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from encoder_kernels.disentangled_attention import disentangled_attention, linear_index, log_bucket_index, reference
from encoder_kernels.dispatch import INTERPRETED

# transformers compiles some functions with it as its modules are imported
quiet = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

LENGTHS = {
    "one": [37],
    "mixed": [1, 0, 65, 2, 0, 70, 64, 33, 0],
    "empty": [],
    "nothing": [0, 0],
    "ones": [1] * 5,
    "many": [(7 * n) % 23 + 1 for n in range(64)],
    "seventeen": [64] * 17,
    "long": [2000, 3],
    "longer than the embeddings": [150],
}


def straightforward(query, key, value, position_key, position_query, row, cu_seqlens, scale, keys=None):  # type: ignore[no-untyped-def]
    """Return the formula, pair by pair, in float64."""
    query, key, value = (tensor.double().cpu() for tensor in (query, key, value))
    out = torch.zeros_like(query)
    offsets = cu_seqlens.tolist()
    for number, (start, end) in enumerate(pairwise(offsets)):
        places = torch.arange(end - start)
        line = torch.tensor([row(distance) for distance in range(start - end + 1, end - start)], dtype=torch.long)
        rows = line[places[:, None] - places[None, :] + len(places) - 1]
        q, k, v = (tensor[start:end].transpose(0, 1) for tensor in (query, key, value))
        scores = q @ k.transpose(1, 2)
        if position_key is not None:
            table = q @ position_key.double().cpu().transpose(1, 2)
            scores = scores + table[:, places[:, None], rows]
        if position_query is not None:
            table = k @ position_query.double().cpu().transpose(1, 2)
            scores = scores + table[:, places[None, :], rows]
        seen = end - start if keys is None else keys[number]
        out[start:end] = ((scores * scale)[..., :seen].softmax(-1) @ v[:, :seen]).transpose(0, 1)
    return out


def by_distance(table, index):  # type: ignore[no-untyped-def]
    """Return the embeddings in the order of distances, as the kernel wants them."""
    return None if table is None else table[..., index.to(table.device), :]


def run(form, close, lengths, heads=2, head_size=32, buckets=32, farthest=48, terms="both", keys=None):  # type: ignore[no-untyped-def]
    padding = 3
    tokens = sum(lengths) + padding
    query, key, value = form.randn(tokens, 3, heads, head_size).unbind(1)
    index = log_bucket_index(buckets, farthest)
    limit = len(index) // 2
    rows = index.tolist()
    position_key = form.randn(heads, 2 * buckets, head_size) if terms in ("both", "c2p") else None
    position_query = form.randn(heads, 2 * buckets, head_size) if terms in ("both", "p2c") else None
    cu_seqlens, scale = form.offsets(lengths), 1 / math.sqrt(3 * head_size)
    if keys is not None:
        # what is no key is never read
        for end, length, seen in zip(cu_seqlens.tolist()[1:], lengths, keys, strict=True):
            key[end - length + seen : end] = value[end - length + seen : end] = float("nan")
    out = form.poisoned(tokens, heads, head_size)
    result = disentangled_attention(
        query,
        key,
        value,
        *(by_distance(table, index) for table in (position_key, position_query)),
        cu_seqlens,
        max(lengths, default=0),
        scale=scale,
        key_lengths=None if keys is None else torch.tensor(keys, dtype=torch.int32).to(form.device),
        out=out,
    )
    assert result is out
    expected = straightforward(
        query,
        key,
        value,
        position_key,
        position_query,
        lambda distance: rows[min(max(distance, -limit), limit) + limit],
        cu_seqlens,
        scale,
        keys,
    )
    close(out[: tokens - padding], expected[: tokens - padding])
    assert out[tokens - padding :].isnan().all()


@pytest.mark.parametrize(
    "lengths", [name for name in LENGTHS if not (INTERPRETED and name in ("long", "seventeen", "many"))]
)
def test_every_batch(form, close, lengths: str) -> None:  # type: ignore[no-untyped-def]
    run(form, close, LENGTHS[lengths], heads=1 if lengths == "long" else 2)


@pytest.mark.parametrize("head_size", [32, 64, 80, 96, 128])
def test_every_head_size(any_form, close, head_size: int) -> None:  # type: ignore[no-untyped-def]
    run(any_form, close, [3, 34] if any_form.small else [19, 66], heads=1 if any_form.small else 3, head_size=head_size)


@pytest.mark.parametrize("terms", ["both", "c2p", "p2c", "none"])
@pytest.mark.parametrize("lengths", [[40, 5], [100]], ids=["near", "far"])
def test_every_set_of_terms(form, close, terms: str, lengths: list[int]) -> None:  # type: ignore[no-untyped-def]
    run(form, close, lengths, heads=1 if form.small else 3, terms=terms)


@pytest.mark.parametrize("terms", ["both", "none"])
def test_tokens_that_are_queries_only_are_read_as_keys_by_nobody(form, close, terms: str) -> None:  # type: ignore[no-untyped-def]
    # all, some and one of the tokens are keys; blocks of keys end before blocks of queries
    run(form, close, [32, 32, 5, 100], heads=1 if form.small else 2, terms=terms, keys=[32, 9, 1, 33])


def test_blocks_that_lie_wholly_beyond_the_farthest_distance(any_form, close) -> None:  # type: ignore[no-untyped-def]
    # three blocks of queries and of keys in every type; the last block of keys has one key
    run(any_form, close, [20, 130], heads=1, head_size=64, buckets=8, farthest=12, keys=[7, 129])


@pytest.mark.skipif(INTERPRETED, reason="thousands of programs")
def test_at_the_published_models_sizes(form, close) -> None:  # type: ignore[no-untyped-def]
    run(form, close, [600, 130, 257, 1], heads=2, head_size=64, buckets=256, farthest=512)


def test_dense_and_strided_inputs_agree(form) -> None:  # type: ignore[no-untyped-def]
    query, key, value = form.randn(40, 3, 2, 32).unbind(1)
    table, cu_seqlens = form.randn(2, 97, 32), form.offsets([17, 23])
    arguments = (table, table, cu_seqlens, 23)
    strided = disentangled_attention(query, key, value, *arguments, scale=0.1)
    dense = disentangled_attention(*(tensor.contiguous() for tensor in (query, key, value)), *arguments, scale=0.1)
    assert torch.equal(strided, dense)


def test_a_sequence_does_not_see_its_neighbours(form) -> None:  # type: ignore[no-untyped-def]
    qkv = form.randn(50, 3, 2, 32)
    table = form.randn(2, 97, 32)
    alone = disentangled_attention(*qkv[10:40].unbind(1), table, table, form.offsets([30]), 30, scale=0.1)
    between = disentangled_attention(*qkv.unbind(1), table, table, form.offsets([10, 30, 10]), 30, scale=0.1)
    qkv[:10], qkv[40:] = float("nan"), float("inf")
    beside = disentangled_attention(*qkv.unbind(1), table, table, form.offsets([10, 30, 10]), 30, scale=0.1)
    assert torch.equal(between[10:40], beside[10:40])
    torch.testing.assert_close(alone, between[10:40])


@pytest.mark.parametrize("terms", ["both", "c2p", "p2c"])
def test_each_sequence_reads_its_own_of_several_tables(form, close, terms: str) -> None:  # type: ignore[no-untyped-def]
    lengths, numbers = [20, 3, 20, 0, 33, 7], [2, 0, 1, 2, 2, 0]
    query, key, value = form.randn(sum(lengths), 3, 2, 32).unbind(1)
    position_key = form.randn(3, 2, 97, 32) if terms != "p2c" else None
    position_query = form.randn(3, 2, 97, 32) if terms != "c2p" else None
    cu_seqlens = form.offsets(lengths)

    def computed(which: int | None, tables: torch.Tensor | None) -> torch.Tensor:
        position = (one if one is None or which is None else one[which] for one in (position_key, position_query))
        given = (query, key, value, *position, cu_seqlens, max(lengths))
        return disentangled_attention(*given, scale=0.1, tables=tables)

    ours = computed(None, torch.tensor(numbers, dtype=torch.int32).to(form.device))
    each = [computed(which, None).double() for which in range(3)]
    of_token = torch.tensor(numbers).repeat_interleave(torch.tensor(lengths)).tolist()
    close(ours, torch.stack([each[number][token] for token, number in enumerate(of_token)]))
    assert not torch.allclose(each[0], each[1], atol=0.05)


@pytest.mark.skipif(INTERPRETED, reason="the reference's own memory bound")
def test_heads_that_are_computed_in_parts_use_their_own_tables(form, close, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(reference, "_ELEMENTS", 2 * 40**2)
    # parts of two heads, of two heads, and of one
    run(form, close, [40, 3], heads=5)


@pytest.mark.gpu
def test_addresses_beyond_two_to_the_31() -> None:
    tokens, heads, head_size = 360_000, 12, 64
    buffer = torch.empty(tokens * 6_000, dtype=torch.float16, device="cuda")
    qkv = buffer.as_strided((tokens, 3, heads, head_size), (6_000, heads * head_size, head_size, 1))
    qkv[-200:] = torch.randn(200, 3, heads, head_size, device="cuda", dtype=torch.float16)
    qkv[:200] = qkv[-200:]
    table = torch.randn(2, heads, 1025, head_size, device="cuda", dtype=torch.float16)
    cu_seqlens = torch.tensor([0, 200, tokens - 200, tokens], dtype=torch.int32, device="cuda")
    out = torch.empty(tokens, heads, head_size, dtype=torch.float16, device="cuda")
    # longer sequences than max_seqlen are cut: the one between costs nothing
    disentangled_attention(*qkv.unbind(1), *table, cu_seqlens, 200, scale=0.07, out=out)
    assert torch.equal(out[:200], out[-200:])
    assert out[:200].isfinite().all()


@quiet
@pytest.mark.skipif(INTERPRETED, reason="no kernel is involved")
@pytest.mark.parametrize("buckets", [2, 3, 4, 5, 16, 32, 33, 64, 100, 128, 160, 256, 512])
def test_log_buckets_are_transformers(buckets: int) -> None:
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    distances = torch.arange(-9000, 9001)
    for farthest in {buckets // 2 + 2, buckets + 3, 48, 128, 200, 512, 1280, 2048, 4096}:
        if farthest - 1 <= buckets // 2:
            continue
        index = log_bucket_index(buckets, farthest)
        limit = len(index) // 2
        theirs = (make_log_bucket_position(distances, buckets, farthest).long() + buckets).clamp(0, 2 * buckets - 1)
        assert torch.equal(index[distances.clamp(-limit, limit) + limit].long(), theirs), farthest
        # the kernel reads the rows between those of the nearest and the farthest key
        assert (index.diff() >= 0).all(), farthest


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_log_buckets_do_not_depend_on_the_type_of_the_weights(dtype: torch.dtype) -> None:
    expected = log_bucket_index(256, 512)
    torch.set_default_dtype(dtype)  # as vLLM does while it builds a model
    try:
        assert torch.equal(log_bucket_index(256, 512), expected)
    finally:
        torch.set_default_dtype(torch.float32)


@quiet
@pytest.mark.parametrize("span", [1, 16, 512])
def test_linear_rows_are_transformers(span: int) -> None:
    from transformers.models.deberta.modeling_deberta import build_relative_position

    queries = torch.zeros(1, 1, 600, 4)
    distances = build_relative_position(queries, queries)[0].long()
    index = linear_index(span)
    limit = len(index) // 2
    assert torch.equal(index[distances.clamp(-limit, limit) + limit].long(), (distances + span).clamp(0, 2 * span - 1))


@quiet
@pytest.mark.skipif(INTERPRETED, reason="float64 needs the reference")
@pytest.mark.parametrize("terms", [["c2p", "p2c"], ["p2c"], ["c2p"]])
@pytest.mark.parametrize("shared", [True, False])
def test_against_transformers_module(terms: list[str], shared: bool) -> None:
    from transformers import DebertaV2Config
    from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention

    config = DebertaV2Config(
        hidden_size=128,
        num_attention_heads=4,
        relative_attention=True,
        position_buckets=16,
        max_position_embeddings=40,
        pos_att_type=terms,
        share_att_key=shared,
    )
    module = DisentangledSelfAttention(config).double().eval()
    embeddings = torch.randn(32, 128, dtype=torch.float64)
    hidden = torch.randn(2, 90, 128, dtype=torch.float64)
    with torch.no_grad():
        theirs = module(hidden, torch.ones(2, 1, 90, 90), rel_embeddings=embeddings)[0].view(180, 4, 32)
        query, key, value = (
            projection(hidden.view(180, 128)).view(180, 4, 32)
            for projection in (module.query_proj, module.key_proj, module.value_proj)
        )
        tables = {
            "c2p": module.key_proj if shared else getattr(module, "pos_key_proj", None),
            "p2c": module.query_proj if shared else getattr(module, "pos_query_proj", None),
        }
        position_key, position_query = (
            tables[term](embeddings).view(32, 4, 32).transpose(0, 1) if term in terms else None
            for term in ("c2p", "p2c")
        )
    ours = disentangled_attention(
        query,
        key,
        value,
        *(by_distance(table, log_bucket_index(16, 40)) for table in (position_key, position_query)),
        torch.tensor([0, 90, 180], dtype=torch.int32),
        90,
        scale=1 / math.sqrt(32 * (1 + len(terms))),
    )
    # transformers takes the square root of the scale in float32
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


def test_arguments_are_refused_by_name() -> None:
    qkv, table = torch.randn(6, 3, 2, 32).unbind(1), torch.randn(2, 97, 32)
    offsets = torch.tensor([0, 6], dtype=torch.int32)

    def call(**changes: object) -> None:
        arguments = {
            "query": qkv[0],
            "key": qkv[1],
            "value": qkv[2],
            "position_key": table,
            "position_query": table,
            "cu_seqlens": offsets,
            "max_seqlen": 6,
            "scale": 1.0,
            **changes,
        }
        disentangled_attention(**arguments)

    call()
    for name, value in {
        "query": qkv[0][0],
        "key": qkv[1][:5],
        "value": qkv[2].half(),
        "position_key": torch.randn(3, 97, 32),
        "position_query": torch.randn(2, 95, 32),
        "cu_seqlens": offsets[:0],
        "max_seqlen": -1,
        "key_lengths": offsets,
        "out": torch.empty(6, 32, 2).transpose(1, 2),
    }.items():
        with pytest.raises(ValueError, match=f"^{name}: "):
            call(**{name: value})
    with pytest.raises(ValueError, match=r"^position_key: expected 2 \* limit \+ 1 rows, found 96"):
        call(position_key=table[:, 1:], position_query=table[:, 1:])
    with pytest.raises(ValueError, match=r"^tables: "):
        call(tables=offsets, position_key=table[None], position_query=table[None])
    with pytest.raises(ValueError, match=r"^position_key: "):
        call(tables=offsets[:1])
    with pytest.raises(ValueError, match=r"^max_distance: "):
        log_bucket_index(32, 17)
    with pytest.raises(ValueError, match=r"^buckets: "):
        log_bucket_index(1, 17)
    with pytest.raises(ValueError, match=r"^span: "):
        linear_index(0)
