"""How reference outputs are stored, and what is not stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoder_plugins.artifact import manifest, reference
from encoder_plugins.artifact.reference import Recording
from encoder_plugins.errors import ChecksumMismatch, Unsupported
from encoder_plugins.families.retrieval import calibration
from encoder_plugins.prep import recorder

CASES = [{"id": "one"}, {"id": "a/b with a slash"}]
OUTPUTS: dict[str, Any] = {
    "one": {"logits": np.arange(6, dtype=np.float32).reshape(1, 2, 3), "logits_bfloat16": np.ones((1, 2, 3))},
    "a/b with a slash": {"logits": np.zeros((0, 2, 3), np.float32)},
}


def sealed(folder: Path, outputs: dict[str, Any] = OUTPUTS) -> Path:
    reference.write(Recording(cases=CASES, outputs=outputs, about={"library": "x"}), folder)
    made = manifest.build(
        folder, key="k", plugin="p", prep_version=1, licence_note="non-commercial", source={"revision": "r"}
    )
    (folder / manifest.MANIFEST).write_bytes(made.encode())
    return folder


def test_named_arrays_come_back_as_they_were(tmp_path: Path) -> None:
    found = reference.read(sealed(tmp_path))
    assert found.cases == tuple(CASES)
    assert found.expected.keys() == OUTPUTS.keys()
    for case, arrays in OUTPUTS.items():
        assert found.expected[case].keys() == arrays.keys()
        for name, value in arrays.items():
            np.testing.assert_array_equal(found.expected[case][name], value.astype(np.float32))
    assert manifest.read(tmp_path).licence_note == "non-commercial"


def test_calibration_vectors_are_part_of_what_is_verified_and_not_compared(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(7, 3))
    recording = Recording(cases=CASES, outputs=OUTPUTS, about={"library": "x"}, calibration=vectors.astype(np.float32))
    for folder in (tmp_path / "exchanged", tmp_path / "artifact"):
        folder.mkdir()
    # as the worker hands it over
    recorder.write_recording(tmp_path / "exchanged", recording)
    reference.write(recorder.read_recording(tmp_path / "exchanged"), tmp_path / "artifact")
    made = manifest.build(
        tmp_path / "artifact", key="k", plugin="p", prep_version=1, licence_note=None, source={"revision": "r"}
    )
    (tmp_path / "artifact" / manifest.MANIFEST).write_bytes(made.encode())
    found = calibration.read(tmp_path / "artifact" / manifest.MODEL)
    assert found is not None
    np.testing.assert_array_equal(found, vectors.astype(np.float32))
    assert reference.read(tmp_path / "artifact").expected.keys() == OUTPUTS.keys()
    (tmp_path / "artifact" / manifest.CALIBRATION).write_bytes(b"other")
    with pytest.raises(ChecksumMismatch, match="calibration"):
        reference.read(tmp_path / "artifact")
    broken = replace(recording, calibration=np.full((2, 3), np.nan, np.float32))
    with pytest.raises(Unsupported, match="calibration"):
        reference.write(broken, tmp_path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_outputs_that_are_not_finite_are_refused_with_their_case(tmp_path: Path, value: float) -> None:
    broken = {**OUTPUTS, "one": {"logits": np.array([1.0, value], np.float32)}}
    with pytest.raises(Unsupported, match=r"case one, output logits"):
        sealed(tmp_path, broken)
    assert not (tmp_path / manifest.REFERENCE).exists()


@pytest.mark.parametrize(
    "outputs",
    [
        {"one": OUTPUTS["one"]},
        {**OUTPUTS, "third": OUTPUTS["one"]},
        {**OUTPUTS, "one": {}},
        {**OUTPUTS, "one": {"a/b": np.zeros(1)}},
    ],
)
def test_outputs_that_do_not_belong_to_the_cases_are_a_mistake_of_the_recorder(tmp_path: Path, outputs: Any) -> None:
    with pytest.raises(ValueError, match=r"case|outputs"):
        sealed(tmp_path, outputs)


def test_two_cases_of_one_name_are_a_mistake_of_the_recorder(tmp_path: Path) -> None:
    twice = Recording(cases=[{"id": "one"}] * 2, outputs={"one": OUTPUTS["one"]}, about={})
    with pytest.raises(ValueError, match="distinct id"):
        reference.write(twice, tmp_path)


@pytest.mark.parametrize("name", [manifest.CASES, manifest.EXPECTED, manifest.ABOUT])
def test_a_reference_that_was_changed_is_not_read(tmp_path: Path, name: str) -> None:
    path = sealed(tmp_path) / name
    path.write_bytes(path.read_bytes().replace(b"1", b"2") + b" ")
    with pytest.raises(ChecksumMismatch, match="differs"):
        reference.read(tmp_path)


def reseal(folder: Path) -> None:
    made = manifest.build(folder, key="k", plugin="p", prep_version=1, licence_note=None, source={"revision": "r"})
    (folder / manifest.MANIFEST).write_bytes(made.encode())


def test_the_reference_is_read_without_the_weights(tmp_path: Path) -> None:
    (tmp_path / manifest.MODEL).mkdir()
    weights = tmp_path / manifest.MODEL / "model.safetensors"
    weights.write_bytes(b"weights")
    sealed(tmp_path)
    weights.unlink()
    assert reference.read(tmp_path).expected.keys() == OUTPUTS.keys()


@pytest.mark.parametrize("name", [manifest.CASES, manifest.EXPECTED])
def test_a_reference_of_which_a_file_is_missing_or_damaged_is_not_read(tmp_path: Path, name: str) -> None:
    path = sealed(tmp_path) / name
    path.unlink()
    with pytest.raises(ChecksumMismatch, match="the reference cannot be read: FileNotFoundError"):
        reference.read(tmp_path)
    # as prep would have sealed it
    reseal(tmp_path)
    with pytest.raises(ChecksumMismatch, match="the reference cannot be read: KeyError"):
        reference.read(tmp_path)
    path.write_bytes(b"{")
    reseal(tmp_path)
    with pytest.raises(ChecksumMismatch, match=r"the reference cannot be read: (JSONDecode|Safetensor)Error"):
        reference.read(tmp_path)


def test_a_reference_without_cases_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(ChecksumMismatch, match="no cases"):
        reference.read(sealed_without_cases(tmp_path))


@pytest.mark.parametrize("cases", [CASES[:1], [*CASES, {"id": "third"}]])
def test_a_reference_whose_cases_and_outputs_differ_is_not_read(tmp_path: Path, cases: list[dict[str, str]]) -> None:
    reference.write(Recording(cases=CASES, outputs=OUTPUTS, about={}), tmp_path)
    (tmp_path / manifest.CASES).write_bytes(manifest.canonical_json(cases))
    reseal(tmp_path)
    with pytest.raises(ChecksumMismatch, match="cases without expected outputs"):
        reference.read(tmp_path)


def sealed_without_cases(folder: Path) -> Path:
    reference.write(Recording(cases=[], outputs={}, about={}), folder)
    reseal(folder)
    return folder
