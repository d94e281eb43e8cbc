"""How many processes serve, by host."""

from itertools import pairwise

import pytest

from encoder_plugins.serving import tuning
from encoder_plugins.serving.host import Host
from encoder_plugins.serving.tuning import choose

SMALL = {"weights": 1 << 29, "longest": 512}
GIB = 1 << 30


@pytest.mark.parametrize(
    ("cores", "memory", "api_servers"),
    [(1, None, 1), (2, None, 1), (3, None, 1), (4, None, 2), (8, None, 3), (64, None, 4), (64, 4 * GIB, 1)],
)
def test_a_cpu_gets_more_api_servers_only_where_cores_and_memory_are_left(
    cores: int, memory: int | None, api_servers: int
) -> None:
    found = choose("cpu", Host(cores=cores, memory=memory), **SMALL)
    assert (found.engines, found.api_servers) == (1, api_servers)
    assert (found.batch_tokens, found.graph_sizes, found.memory_share) == (None, (), None)


@pytest.mark.parametrize(
    ("cores", "memory", "weights", "expected"),
    [
        (2, None, GIB, (1, 1)),
        (7, None, GIB, (1, 3)),
        (8, None, GIB, (2, 3)),
        (15, None, GIB, (2, 3)),
        (16, None, GIB, (4, 3)),
        (32, None, GIB, (4, 3)),
        (16, None, 3 * GIB, (2, 3)),
        (16, 8 * GIB, GIB, (1, 2)),
        (16, 20 * GIB, GIB, (2, 3)),
        (16, 64 * GIB, GIB, (4, 3)),
        # two engines with two API servers each take 12 GiB, and the weights twice
        (16, 18 * GIB, 3 * GIB, (2, 3)),
        (16, 17 * GIB, 3 * GIB, (1, 4)),
        (64, None, 14 * GIB, (1, 4)),
        (16, None, tuning.SMALLEST_BYTES, (4, 3)),
        (16, None, tuning.SMALLEST_BYTES + 1, (2, 3)),
        (16, None, tuning.SMALL_BYTES, (2, 3)),
    ],
)
def test_a_gpu_gets_several_engines_where_they_fit(
    cores: int, memory: int | None, weights: int, expected: tuple[int, int]
) -> None:
    found = choose("nvidia", Host(cores=cores, memory=memory), weights=weights, longest=512)
    assert (found.engines, found.api_servers) == expected
    assert found.memory_share == {1: None, 2: 0.45, 4: 0.225}[found.engines]


def test_what_the_user_sets_is_kept() -> None:
    found = choose("nvidia", Host(cores=2), **SMALL, engines=3, api_servers=4)
    assert (found.engines, found.api_servers, found.memory_share, found.processes) == (3, 4, 0.3, 12)


@pytest.mark.parametrize(
    ("host", "engines", "api_servers"),
    [
        (Host(cores=12), 4, 2),
        (Host(cores=16), 4, 3),
        (Host(cores=32, memory=14 * GIB), 2, 2),
        (Host(cores=6), 2, 2),
        (Host(cores=3), 1, 1),
    ],
)
def test_api_servers_share_what_the_engines_leave(host: Host, engines: int, api_servers: int) -> None:
    assert choose("nvidia", host, **SMALL, engines=engines).api_servers == api_servers


def test_engines_share_the_memory_of_a_gpu_in_thousandths() -> None:
    assert choose("nvidia", Host(cores=64), **SMALL, engines=7).memory_share == 0.129


def test_engines_that_share_a_port_have_two_api_servers_at_least() -> None:
    assert choose("cpu", Host(cores=2), **SMALL, engines=2, api_servers=1).api_servers == 2


def test_a_batch_holds_the_longest_text() -> None:
    for longest, tokens in ((8_192, tuning.BATCH_TOKENS), (40_000, 40_000)):
        found = choose("nvidia", Host(cores=8), weights=1, longest=longest)
        assert found.batch_tokens == found.graph_sizes[-1] == tokens


@pytest.mark.parametrize("most", [16, 100, 512, 8_192, 16_384, 20_000])
def test_graphs_grow_by_an_eighth_and_end_at_the_largest_batch(most: int) -> None:
    sizes = tuning.graph_sizes(most)
    assert sizes[-1] == most
    assert list(sizes) == sorted(set(sizes))
    assert len(sizes) <= 64
    assert all(after <= before * 9 / 8 for before, after in pairwise(sizes) if before >= 512)


def test_graphs_of_small_batches_are_close_to_each_other() -> None:
    assert tuning.graph_sizes(700) == (16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 576, 640, 700)
    assert tuning.graph_sizes(512) == (16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512)


def test_a_checkpoint_may_set_the_prompts_of_a_batch() -> None:
    for accelerator in ("cpu", "nvidia"):
        assert choose(accelerator, Host(cores=8), **SMALL, sequences=32).batch_sequences == 32
    assert choose("nvidia", Host(cores=8), **SMALL).batch_sequences == 512
