"""On a GPU no request waits for a compiler, and the host waits for the device once a batch, however many texts it has."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch

with warnings.catch_warnings():
    # vLLM warns of itself when it is imported
    warnings.simplefilter("ignore")
    from encoder_plugins.families.gliner import payload
    from encoder_plugins.families.gliner.heads import span_tiles, token
    from encoder_plugins.families.gliner.heads.bi_span import FEW_LABELS, GlinerBiSpanPooler
    from encoder_plugins.families.gliner.heads.bi_token import GlinerBiTokenPooler
    from encoder_plugins.families.gliner.heads.pooler import GlinerPooler
    from encoder_plugins.families.gliner.heads.span import GlinerSpanPooler
    from encoder_plugins.families.gliner.heads.tests.compared_heads import config, metadata
    from encoder_plugins.families.gliner.heads.tests.gpu_behavior import launches, waits
    from encoder_plugins.families.gliner.heads.tests.library_head import ENCODER
    from encoder_plugins.families.gliner.heads.token import GlinerTokenPooler
    from encoder_plugins.families.gliner.heads.transfers import to_device
    from encoder_plugins.families.gliner.payload import Item

pytestmark = pytest.mark.filterwarnings("ignore")


class Vectors(torch.nn.Module):
    """Stands for the encoder of labels: a vector is random, and the same for the same run.

    Attributes:
        reserved: Whether the memory that labels may need was used.
    """

    reserved = False

    def accepts(self, runs: Sequence[bytes]) -> bool:
        del runs
        return True

    def reserve(self, like: torch.Tensor) -> None:
        del like
        self.reserved = True

    def forward(self, runs: Sequence[bytes], like: torch.Tensor) -> torch.Tensor:
        rows = [np.random.default_rng(list(run)).standard_normal(32) for run in runs]
        return to_device(like.device, np.stack(rows))[0].to(like.dtype)


POOLERS: dict[str, Callable[[], GlinerPooler]] = {
    "span": lambda: GlinerSpanPooler(ENCODER, config(), capacity=400),
    "token": lambda: GlinerTokenPooler(ENCODER, config(head="token")),
    "proposed spans": lambda: GlinerTokenPooler(ENCODER, config(head="token", represent_spans=True)),
    "span bi-encoder": lambda: GlinerBiSpanPooler(ENCODER, config(), Vectors(), capacity=400),  # type: ignore[arg-type]
    "linker": lambda: GlinerBiTokenPooler(ENCODER, config(head="token"), Vectors()),  # type: ignore[arg-type]
}


def make(name: str) -> GlinerPooler:
    torch.manual_seed(0)
    pooler = POOLERS[name]()
    for parameter in pooler.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return pooler


def item(words: int, labels: int, threshold: float, classes: int = 0, *, bi: bool) -> Item:
    places, names = np.arange(words, dtype=np.int32), np.arange(labels, dtype=np.int32)
    runs = tuple(np.array([number], "<i4").tobytes() for number in range(labels)) if bi else ()
    return Item(places, names, threshold, classes=classes, runs=runs)


def send(pooler: GlinerPooler, items: Sequence[Item], device: str = "cpu") -> list[torch.Tensor]:
    bi = isinstance(pooler, GlinerBiSpanPooler | GlinerBiTokenPooler)
    lengths = [max(len(one.words), 1 if bi else len(one.labels) + 1) for one in items]
    extras = [
        payload.encode_texts([one], [length]) | (payload.encode_runs(one.runs) if bi else {})
        for one, length in zip(items, lengths, strict=True)
    ]
    hidden = torch.randn(sum(lengths), ENCODER, generator=torch.Generator().manual_seed(len(items)))
    (sent,) = to_device(torch.device(device), hidden.numpy())
    found: list[torch.Tensor] = pooler(sent.to(next(pooler.parameters()).dtype), metadata(lengths, extras))
    return found


def stream(bi: bool) -> Iterator[list[Item]]:
    """Yield batches of all sizes, with few and many words, labels and candidates."""
    generator = np.random.default_rng(0)
    for texts, labels in ((1, 1), (2, 2), (3, 16), (1, 17), (7, 32), (1, 33), (2, 70), (130, 3)):
        some = [
            item(
                int(generator.integers(1, 20)),
                int(generator.integers(1, labels + 1)),
                float(generator.choice([0.0, 0.5, 1.0])),
                classes=0 if bi else int(generator.integers(0, 3)),
                bi=bi,
            )
            for _ in range(texts - 1)
        ]
        yield [*some, item(90, labels, 0.0, bi=bi)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", POOLERS)
def test_no_request_needs_a_form_of_a_kernel_that_the_start_did_not_compile(name: str, dtype: torch.dtype) -> None:
    pooler = make(name).to(dtype)
    with launches() as compiled:
        pooler.warm_up(torch.randn(512, ENCODER, dtype=dtype))
    assert compiled
    # what the engine measures at its start holds the memory of labels, too
    assert getattr(pooler, "labels", Vectors()).reserved == ("bi" in name or name == "linker")
    with launches() as needed:
        for items in stream("bi" in name or name == "linker"):
            send(pooler, items)
    assert needed <= compiled, needed - compiled
    assert needed


# texts of which all spans are kept; of which there are more; with the probabilities of classes; whose spans are all proposed
CASES = {
    "every span": lambda bi: [item(8, 3, 0.0, bi=bi)] * 9,
    "few": lambda bi: [item(20, 3, 0.5, bi=bi)] * 9,
    "overflow": lambda bi: [item(20, 3, 0.5, bi=bi), *[item(60, 3, 0.0, bi=bi)] * 8],
    "classes": lambda bi: [item(20, 3, 0.5, classes=2, bi=bi)] * 9,
}


@pytest.mark.parametrize(
    ("name", "case", "expected"),
    [
        ("span", "few", 1),
        ("span", "overflow", 2),
        ("span", "classes", 2),
        ("token", "few", 1),
        ("token", "overflow", 1),
        ("linker", "overflow", 1),
        # words' scores, then those of spans
        ("proposed spans", "every span", 2),
        ("span bi-encoder", "few", 1),
        ("span bi-encoder", "overflow", 2),
    ],
)
def test_a_batch_waits_as_often_as_one_text(name: str, case: str, expected: int) -> None:
    pooler = make(name)
    items = CASES[case](name in ("linker", "span bi-encoder"))
    for texts in (items, items[-1:]):
        with waits() as found:
            answers = send(pooler, texts)
        assert len(answers) == len(texts)
        assert found.count == expected, found.seen


def test_a_list_of_many_labels_waits_once_for_each_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    pooler = make("span bi-encoder")
    with waits() as few:
        send(pooler, [item(20, FEW_LABELS + 1, 0.5, bi=True)])
    monkeypatch.setattr(span_tiles, "FEW_SCORES", 0)
    with waits() as many:
        send(pooler, [item(20, FEW_LABELS + 1, 0.5, bi=True)])
    # the number of its candidates, and then these
    assert (few.count, many.count) == (1, 2)


@pytest.mark.parametrize("name", ["token", "proposed spans", "span bi-encoder"])
def test_what_the_host_chooses_is_what_the_device_chooses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pooler = make(name)
    items = [item(words, FEW_LABELS + 1 if "bi" in name else 5, 0.6, bi="bi" in name) for words in (1, 7, 30)]
    by_host = send(pooler, items)
    monkeypatch.setattr(token, "FEW_PAIRS", 0)
    monkeypatch.setattr(span_tiles, "FEW_SCORES", 0)
    by_device = send(pooler, items)
    assert sum(map(len, by_host)) > 20
    for ours, other in zip(by_host, by_device, strict=True):
        assert torch.equal(ours, other)


@pytest.mark.gpu
@pytest.mark.parametrize("name", POOLERS)
def test_nothing_else_waits_on_a_gpu(name: str) -> None:
    pooler = make(name).cuda()
    items = CASES["few"](name in ("linker", "span bi-encoder"))
    expected = send(pooler, items, "cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = send(pooler, items, "cuda")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # blocks of a device append their candidates in any order, and the decoder sorts them
    for ours, other in zip(found, expected, strict=True):
        assert sorted(ours.tolist()) == sorted(other.tolist())
