"""What `encoder-plugins size` answers, from a cost model that is given."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from encoder_plugins import __main__ as command
from encoder_plugins.errors import BadArgument
from encoder_plugins.sizing import capacity, estimate
from encoder_plugins.sizing.capacity import Capacity
from encoder_plugins.sizing.cost_model import COEFFICIENTS, Cost, Work

COST = Cost(request=160, item=40, token=0.1, device_token=0.5, device_pair=0.001, device_token_label=0.02)
ENTRY = Capacity(
    plugin="deberta_gliner",
    shape="small",
    weights_bytes=300 << 20,
    gpu="NVIDIA H200",
    item="text",
    cost=COST,
    worst_error=0.08,
    worst_fitted_error=0.05,
    fitted=15,
    held_out=8,
    measured={"items": (1, 32), "tokens": (32, 1024), "labels": (5, 25)},
    alone_ms={"32": 4.0, "1024": 9.0},
    memory_bytes=3 << 30,
    setup={"date": "2026-11-25", "dtype": "bfloat16", "engines": 4, "api_servers": 3, "cores": 16, "versions": {"vllm": "0.32.0"}},
    source="docs/measurements/capacity/nvidia-h200/deberta_gliner-small.json",
    digest="0" * 64,
)  # fmt: skip


def test_a_request_costs_its_texts_less_the_more_there_are() -> None:
    work = Work(items=1, tokens=100, labels=5)
    assert COST.host(work) == 160 + 40 + 10
    assert COST.device(work) == 50 + 10 + 10
    assert COST.microseconds(work) == pytest.approx(280)
    assert COST.microseconds(replace(work, items=32)) == pytest.approx(160 / 32 + 40 + 10 + 70)


def test_what_overlaps_well_costs_what_the_slower_part_does() -> None:
    work = Work(items=1, tokens=100, labels=5)
    both = [replace(COST, overlap=overlap).microseconds(work) for overlap in (1, 2, 8, 64)]
    assert both == sorted(both, reverse=True)
    assert both[-1] == pytest.approx(210)
    assert Cost(request=0, item=0).microseconds(work) == 0


def test_replicas_serve_the_load_at_the_utilization() -> None:
    work = Work(items=1, tokens=100, labels=5)
    rate = 1e6 / 280
    for wanted, utilization, replicas in ((1, 0.7, 1), (rate * 0.7, 0.7, 1), (rate * 0.71, 0.7, 2), (rate * 3, 1, 3)):
        found = estimate.estimate(ENTRY, work, wanted=wanted * (1 - 1e-9), utilization=utilization)
        assert found.replicas == replicas
    assert estimate.estimate(ENTRY, work).replicas is None


def test_the_answer_says_what_it_was_computed_from_and_what_was_not_measured() -> None:
    work = Work(items=64, tokens=2000, labels=5)
    text = "\n".join(estimate.report(estimate.estimate(ENTRY, work, wanted=500)))
    for phrase in ("NVIDIA H200", "small", "4 engines", "2026-11-25", ENTRY.source, "8% at most on 8 held-out", "9 ms"):
        assert phrase in text
    assert "extrapolated: 64 texts a request (measured: 1 to 32)" in text
    assert "extrapolated: 2000 tokens a text (measured: 32 to 1024)" in text
    within = "\n".join(estimate.report(estimate.estimate(ENTRY, Work(items=1, tokens=100, labels=5))))
    assert "warning" not in within
    assert "replicas" not in within
    far = replace(ENTRY, worst_error=0.2)
    assert "warning: the model's error is above 15%" in estimate.error_of(far)
    assert "not known" in estimate.error_of(replace(ENTRY, worst_error=None))


def test_only_what_was_measured_is_answered() -> None:
    known = (ENTRY, replace(ENTRY, gpu="NVIDIA L4"), replace(ENTRY, plugin="colqwen3", item="page"))
    assert capacity.select(known, "deberta_gliner", gpu="h200") is ENTRY
    for arguments, message in (
        ({"plugin": "deberta_gliner"}, "several measurements match .*NVIDIA L4"),
        ({"plugin": "deberta_gliner", "gpu": "H100"}, "on H100 was not measured .*small, texts, on NVIDIA H200"),
        ({"plugin": "deberta_gliner", "shape": "large"}, "deberta_gliner large"),
        ({"plugin": "colqwen3"}, "colqwen3, texts was not measured"),
        ({"plugin": "mmbert_gliner"}, "was not measured"),
    ):
        with pytest.raises(BadArgument, match=message):
            capacity.select(known, **arguments)
    with pytest.raises(BadArgument, match=r"measured: nothing"):
        capacity.select((), "deberta_gliner")


def test_the_command_prints_text_and_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(capacity, "committed", lambda: (ENTRY,))
    given = ["size", "deberta_gliner", "--words", "75", "--rate", "6000", "--labels", "5"]
    assert command.main(given) == 0
    assert "replicas: 3 for 6000 texts/s at 70% utilization" in capsys.readouterr().out
    assert command.main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["replicas"], found["work"]["tokens"], found["outside"]) == (3, 100, [])
    assert command.main(["size", "deberta_gliner", "--pages"]) == 2
    assert "deberta_gliner, pages was not measured" in capsys.readouterr().err
    for wrong in (["--words", "0"], ["--tokens", "nan"], ["--words", "5", "--utilization", "1.5"]):
        with pytest.raises(SystemExit):
            command.main(["size", "deberta_gliner", *wrong])


def test_committed_models_have_no_negative_cost() -> None:
    for entry in capacity.committed():
        assert all(getattr(entry.cost, name) >= 0 for name in COEFFICIENTS)
        assert entry.cost.overlap >= 1
        assert entry.shape != "tiny"
