"""A real server under fuzz: a slice of one plugin for every day, all plugins at full length as `soak`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from encoder_bench import fuzz
from encoder_bench.fuzz_bodies import Maker, Shape
from encoder_checkpoints import samples
from encoder_plugins import catalog

SLICE = 600
WHOLE = 10_000
PLUGIN = "deberta_gliner"


def attacked(plugin: str, folder: Path, count: int) -> fuzz.Report:
    sample, options = samples.of(catalog.get(plugin)), []
    if sample.plugin.label_sets:
        labels = [
            json.dumps({"id": f"Q{number}", "label": label}) for number, label in enumerate(sample.demo["labels"])
        ]
        (folder / "labels.jsonl").write_text("\n".join(labels))
        options = ["--label-set", f"demo={folder / 'labels.jsonl'}"]
    artifact = samples.prepare(sample, folder, *options)
    report = fuzz.run(artifact, count, seed=1, log=folder / "server.log")
    print(report.render())
    return report


def check(report: fuzz.Report, count: int) -> None:
    assert report.findings() == []
    assert report.sent == count
    # "damaged files" is a kind of plugins that take files
    assert {kind for kind, _ in report.statuses} >= set(
        Maker([Shape("/pooling", {"properties": {}}, [{}])], 0, 1).kinds
    )
    assert {200, 400, 404, 413, 415} <= {status for _, status in report.statuses}
    # the same field is named in many ways: what matters is that many were found wrong
    assert len(report.fields) >= 10


@pytest.mark.engine
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")
def test_whatever_is_sent_is_answered_or_refused_by_name(tmp_path: Path) -> None:
    check(attacked(PLUGIN, tmp_path, SLICE), SLICE)


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("plugin", list(catalog.plugins()))
def test_ten_thousand_requests_do_no_harm(plugin: str, tmp_path: Path) -> None:
    check(attacked(plugin, tmp_path, WHOLE), WHOLE)
