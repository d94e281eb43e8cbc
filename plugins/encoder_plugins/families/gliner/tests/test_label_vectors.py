"""Vectors of labels: what a cache keeps and returns, and that no vector depends on what is encoded with it."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from encoder_plugins.tests.free_port import free_port

with warnings.catch_warnings():
    # vLLM and transformers warn of themselves when they are imported
    warnings.simplefilter("ignore")
    from transformers import DebertaConfig, DebertaModel

    from encoder_plugins.backbones import deberta_v1, deberta_v1_settings
    from encoder_plugins.backbones.tests.conftest import join_group, make, randomize
    from encoder_plugins.families.gliner.heads import label_vectors
    from encoder_plugins.families.gliner.heads.label_vectors import LabelVectors, Passes, VectorCache, slices
    from encoder_plugins.families.gliner.payload import vector_run

pytestmark = pytest.mark.filterwarnings("ignore")

VOCABULARY, HIDDEN, SIZE, MOST = 211, 96, 64, 200
LIKE = torch.zeros(0, dtype=torch.float32)


def run(*tokens: int) -> bytes:
    return np.asarray(tokens, "<i4").tobytes()


class Numbers:
    """Stands for an encoder: a vector has the number of its run everywhere."""

    def __init__(self) -> None:
        self.encoded: list[int] = []

    def __call__(self, runs: list[bytes]) -> torch.Tensor:
        numbers = [int(np.frombuffer(one, "<i4")[0]) for one in runs]
        self.encoded += numbers
        return torch.tensor(numbers, dtype=torch.float32)[:, None].repeat(1, 2)


@pytest.mark.parametrize("rows", [0, 1, 3, 10])
def test_a_cache_of_any_size_gives_the_vectors_of_the_runs(rows: int) -> None:
    cache, encode, generator = VectorCache(2, rows * 8), Numbers(), random.Random(rows)
    for _ in range(200):
        numbers = generator.sample(range(12), generator.randint(1, 8))
        vectors = cache.get([run(number) for number in numbers], encode, LIKE)
        assert vectors[:, 1].tolist() == numbers
        assert len(cache) <= rows


def test_what_was_used_last_is_kept_and_encoded_once() -> None:
    cache, encode = VectorCache(2, 3 * 8), Numbers()
    for numbers in ([1, 2], [3], [1], [4], [1, 3, 4], [2, 1], [1, 4]):
        cache.get([run(number) for number in numbers], encode, LIKE)
    # 2 was the oldest when 4 came, and 3 when 2 came again
    assert encode.encoded == [1, 2, 3, 4, 2]
    first = cache.get([run(1)], encode, LIKE)
    cache.get([run(number) for number in range(20, 40)], encode, LIKE)
    assert first.tolist() == [[1, 1]]


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    """A group of one process, as vLLM's layers want one, unless another test's is there."""
    from vllm.distributed import cleanup_dist_env_and_memory

    if torch.distributed.is_initialized():
        yield
        return
    port = free_port()
    join_group(1, 0, port)
    yield
    cleanup_dist_env_and_memory()


@pytest.fixture(scope="module")
def labels(group: None) -> tuple[LabelVectors, Any]:
    """An encoder of labels with a projection, and transformers' of the same weights."""
    config = DebertaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=128,
        max_relative_positions=40,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_biased_input=False,
    )
    reference: Any = randomize(DebertaModel(config))
    built = make(deberta_v1.DebertaV1Encoder, config)
    built.load(reference.state_dict(), deberta_v1_settings.layout(config))
    vectors = LabelVectors(
        built.module,
        encoder_size=HIDDEN,
        size=SIZE,
        projection=True,
        vocabulary=VOCABULARY,
        max_tokens=MOST,
        vllm_config=built.vllm_config,
    )
    randomize(vectors.projection)  # type: ignore[arg-type]
    return vectors, reference


def drawn(count: int, seed: int) -> list[bytes]:
    """Runs of 1 to 40 tokens, and one of the longest."""
    generator = np.random.default_rng(seed)
    runs = [run(*generator.integers(1, VOCABULARY, generator.integers(1, 41))) for _ in range(count)]
    return [*runs, run(*generator.integers(1, VOCABULARY, MOST))]


@pytest.mark.parametrize("mixed", [False, True], ids=["one length a pass", "any lengths, as on a GPU"])
@torch.inference_mode()
def test_a_vector_is_the_mean_of_the_rows_of_transformers(
    labels: tuple[LabelVectors, Any], mixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors, reference = labels
    # the longest has a pass of its own in either
    monkeypatch.setitem(label_vectors.PASSES, "cpu", Passes(MOST - 1, mixed=mixed))
    runs = drawn(20, seed=0)
    for one, got in zip(runs, vectors.encode(runs, LIKE), strict=True):
        ids = torch.from_numpy(np.frombuffer(one, "<i4").astype(np.int64))[None]
        rows = reference(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
        assert vectors.projection is not None
        assert torch.allclose(got, vectors.projection(rows).mean(0), atol=2e-5)


@torch.inference_mode()
def test_a_vector_has_the_same_bits_whatever_is_encoded_with_it(labels: tuple[LabelVectors, Any]) -> None:
    vectors, _ = labels
    runs = drawn(60, seed=1)
    together = vectors.encode(runs, LIKE)
    for number in range(0, len(runs), 7):
        assert torch.equal(vectors.encode([runs[number]], LIKE)[0], together[number])
    for seed in range(3):
        order = random.Random(seed).sample(range(len(runs)), 40)
        assert torch.equal(vectors.encode([runs[number] for number in order], LIKE), together[order])
    # from the cache, partly and wholly
    assert torch.equal(vectors(runs[:30], LIKE), together[:30])
    assert torch.equal(vectors(runs, LIKE), together)
    assert torch.equal(vectors(runs[::-1], LIKE), together.flip(0))


@pytest.mark.parametrize("tokens", [1, 7, 40, 64])
@pytest.mark.parametrize("mixed", [False, True])
def test_labels_share_passes_of_the_same_shapes(mixed: bool, tokens: int) -> None:
    lengths = np.random.default_rng(5).integers(1, 41, 100)
    found = list(slices(lengths, Passes(tokens, mixed=mixed)))
    assert sorted(np.concatenate([one.chosen for one in found]).tolist()) == list(range(100))
    for one in found:
        own = lengths[one.chosen]
        filled = own.sum() + one.fillers * own[0]
        if mixed:
            # only a label that is longer makes other shapes
            assert one.rows == one.vectors == max(tokens, own.max())
            assert filled <= one.rows
        else:
            assert len(set(own.tolist())) == 1
            assert one.vectors == max(1, tokens // own[0])
            assert one.rows == filled == one.vectors * own[0]
    if mixed:
        # none had room for the next label
        for one, after in itertools.pairwise(found):
            assert lengths[one.chosen].sum() + lengths[after.chosen[0]] > one.rows


def test_only_runs_that_the_encoder_takes_are_accepted(labels: tuple[LabelVectors, Any]) -> None:
    vectors, _ = labels
    assert vectors.accepts(drawn(3, seed=2))
    numbers = np.linspace(-9, 9, SIZE, dtype=np.float32)
    assert vectors.accepts([vector_run(numbers), run(1)])
    odd = (numbers[:-1], np.append(numbers[1:], np.float32("nan")), np.append(numbers[1:], np.float32("inf")))
    for bad in (b"", run(VOCABULARY), run(-1), run(*[1] * (MOST + 1)), *map(vector_run, odd)):
        assert not vectors.accepts([run(1), bad])


@torch.inference_mode()
def test_a_given_vector_is_taken_as_it_is_and_not_kept(labels: tuple[LabelVectors, Any]) -> None:
    vectors, _ = labels
    runs = drawn(5, seed=3)
    expected = vectors(runs, LIKE)
    count = len(vectors.cache)
    mixed = [run if place % 2 else vector_run(-expected[place].numpy()) for place, run in enumerate(runs)]
    signs = torch.tensor([1.0 if place % 2 else -1.0 for place in range(len(runs))])
    assert torch.equal(vectors(mixed, LIKE), expected * signs[:, None])
    given = [vector_run(row.numpy()) for row in expected]
    assert torch.equal(vectors(given, LIKE), expected)
    assert len(vectors.cache) == count
