"""The recorded reference is what sentence-transformers answers: on a tiny checkpoint, and once on a real one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from encoder_plugins import catalog
from encoder_plugins.artifact import manifest
from encoder_plugins.models.sentence_transformer import reference
from encoder_plugins.models.sentence_transformer.vectors import unit
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Request

RunHub = Callable[..., Any]


def test_every_case_has_one_vector(checkpoint: Path) -> None:
    recording = reference.record(checkpoint)
    assert set(recording.expected) == {case["id"] for case in recording.cases}
    assert all(vector.dtype == np.float32 and np.isfinite(vector).all() for vector in recording.expected.values())
    asked = {case["id"]: case["dimensions"] or 8 for case in recording.cases}
    assert {name: vector.shape for name, vector in recording.expected.items()} == {
        name: (dimensions,) for name, dimensions in asked.items()
    }
    assert recording.about["library"].startswith("sentence-transformers ")


def test_recording_twice_gives_the_same_bits(checkpoint: Path) -> None:
    first, second = reference.record(checkpoint).expected, reference.record(checkpoint).expected
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_choices_of_a_request_are_those_of_the_library(checkpoint: Path) -> None:
    modules = json.loads((checkpoint / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"})
    (checkpoint / "modules.json").write_text(json.dumps(modules))
    expected = reference.record(checkpoint).expected
    raw, normal = expected["raw"], expected["sentence"]
    assert not np.isclose(np.linalg.norm(raw), 1)
    np.testing.assert_allclose(unit(raw[None])[0], normal, atol=1e-6)
    np.testing.assert_array_equal(expected["dimensions-half"], normal[:4])
    np.testing.assert_array_equal(expected["dimensions-half-raw"], raw[:4])
    np.testing.assert_allclose(expected["dimensions-half-unit"], unit(normal[None, :4])[0], atol=1e-6)
    assert not np.array_equal(expected["prompt-0"], expected["sentence"])


def test_a_checkpoint_that_prefers_half_precision_is_recorded_in_full(checkpoint: Path) -> None:
    before = reference.record(checkpoint).expected["sentence"]
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    np.testing.assert_array_equal(reference.record(checkpoint).expected["sentence"], before)


def test_one_thread_is_enough_and_the_rest_is_given_back(checkpoint: Path) -> None:
    before = torch.get_num_threads()
    with reference.few_threads(checkpoint):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_a_real_checkpoint_all_the_way(run_hub: RunHub, tmp_path: Path, progress: Progress) -> None:
    repository = "demo/all-MiniLM-L6-v2"
    with run_hub() as hub:
        request = Request(
            plugin=catalog.get("sentence_transformer"),
            source=repository,
            output=tmp_path / "key",
            revision=hub.revision_of(repository),
            endpoint=hub.address,
        )
        prepared = prepare(request, progress)
        # the library read the staged folder and asked nobody
        assert set(hub.requests(repository)) == {f"GET {route} {repository}" for route in ("api", "resolve", "cdn")}
    assert manifest.verify(request.output, prepared.digest).source["repo"] == repository
    expected = load_file(request.output / manifest.EXPECTED)
    assert len(expected) == prepared.cases >= 48
    assert expected["sentence"].shape == (384,)
    assert np.linalg.norm(expected["sentence"]) == pytest.approx(1, abs=1e-6)
