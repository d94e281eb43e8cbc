"""Reference outputs are what the original library computes, in its own environment, from the published files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoder_checkpoints import recording
from encoder_plugins import catalog
from encoder_plugins.artifact import manifest
from encoder_plugins.artifact import reference as references
from encoder_plugins.artifact.reference import Arrays, Case, Recording
from encoder_plugins.errors import PrepareError, Unsupported
from encoder_plugins.families.embedding.vectors import unit
from encoder_plugins.models.sentence_transformer.parity import PARITY
from encoder_plugins.models.sentence_transformer.tests import tiny
from encoder_plugins.prep import reference_environment
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Request

RunHub = Callable[..., Any]
PLUGIN = catalog.get("sentence_transformer")


def record(checkpoint: Path) -> Mapping[str, Arrays]:
    return recording.record(PLUGIN, checkpoint, {}, PARITY.cases(checkpoint, ())).outputs


def test_a_case_has_its_vector_in_both_dtypes_and_choices_are_those_of_the_library(checkpoint: Path) -> None:
    modules = json.loads((checkpoint / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"})
    (checkpoint / "modules.json").write_text(json.dumps(modules))
    # whatever a configuration prefers, the reference is float32
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    cases = PARITY.cases(checkpoint, ())
    found = reference_environment.record(PLUGIN, checkpoint, {}, cases)
    assert found.about["library"] == "sentence-transformers 6.2.0"
    assert found.outputs.keys() == {case["id"] for case in cases}
    for case in cases:
        scored, vector = {"scores": (len(case["documents"] or ()),)}, (case["dimensions"] or 8,)
        arrays = found.outputs[case["id"]]
        assert {name: array.shape for name, array in arrays.items()} == (
            scored if case["documents"] else dict.fromkeys(("vector", "vector_bfloat16"), vector)
        )
    expected = {name: arrays["vector"] for name, arrays in found.outputs.items() if "vector" in arrays}
    raw, normal = expected["raw"], expected["sentence"]
    assert not np.isclose(np.linalg.norm(raw), 1)
    np.testing.assert_allclose(unit(raw[None])[0], normal, atol=1e-6)
    np.testing.assert_array_equal(expected["dimensions-half"], normal[:4])
    np.testing.assert_array_equal(expected["dimensions-half-raw"], raw[:4])
    np.testing.assert_allclose(expected["dimensions-half-unit"], unit(normal[None, :4])[0], atol=1e-6)
    assert not np.array_equal(expected["prompt-0"], expected["sentence"])
    # the second dtype is a computation of its own, and close
    rounded = found.outputs["sentence"]["vector_bfloat16"]
    assert 0 < np.abs(rounded - normal).max() < 0.05
    # another process computes the same bits
    again = record(checkpoint)
    assert all(np.array_equal(again[name]["vector"], expected[name]) for name in expected)


def test_a_checkpoint_that_the_library_cannot_load_is_refused_and_not_tried_again(checkpoint: Path) -> None:
    cases = PARITY.cases(checkpoint, ())
    (checkpoint / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(Unsupported, match="sentence-transformers cannot load it"):
        recording.record(PLUGIN, checkpoint, {}, cases)


def test_a_text_that_the_library_fails_on_is_refused_with_the_fields(checkpoint: Path) -> None:
    path = checkpoint / "sentence_bert_config.json"
    path.write_text(json.dumps({"max_seq_length": 64, "do_lower_case": True}), encoding="utf-8")
    (case,) = (case for case in PARITY.cases(checkpoint, ()) if case["id"] == "beyond-limit")
    with pytest.raises(Unsupported, match=r"beyond-limit: max_seq_length .* is 64, .* max_position_embeddings only 32"):
        recording.record(PLUGIN, checkpoint, {}, [case])


def test_positions_that_no_text_has_are_not_counted(tmp_path: Path) -> None:
    checkpoint = tiny.build("roberta", tmp_path)
    (checkpoint / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 130}))
    (case,) = (case for case in PARITY.cases(checkpoint, ()) if case["id"] == "beyond-limit")
    with pytest.raises(Unsupported, match=r"is 130, .* only 130, of which no text has the first 2"):
        recording.record(PLUGIN, checkpoint, {}, [case])


@pytest.mark.parametrize("library", sorted({plugin.reference_library for plugin in catalog.plugins().values()}))
def test_a_recorder_imports_of_ours_only_what_its_environment_can_have(library: str) -> None:
    """Nothing that needs the engine, nor what the environment of the next library may lack."""
    recorders = sorted(plugin.recorder for plugin in catalog.plugins().values() if plugin.reference_library == library)
    program = (
        "import json, sys\n"
        "from encoder_plugins.plugin import resolve\n"
        "from encoder_plugins.prep import record_worker\n"
        f"assert all(callable(resolve(recorder).record) for recorder in {recorders!r})\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    environment = reference_environment.provide(library)
    finished = subprocess.run(
        [str(reference_environment.python(environment)), "-W", "ignore", "-c", program],
        env=reference_environment.worker_environment({}),
        capture_output=True,
        text=True,
        check=True,
    )
    imported = json.loads(finished.stdout.splitlines()[-1])
    ours = {name for name in imported if name.split(".")[0] in ("encoder_plugins", "encoder_kernels")}
    assert "vllm" not in imported
    # each of them must be importable where there is numpy and nothing else
    program = "import sys, importlib\nsys.modules.update(dict.fromkeys(('pydantic', 'safetensors', 'torch', 'vllm', 'msgspec')))\n"
    # a recorder, and what recorders of one family share, run with their library only
    theirs = {recorder.partition(":")[0] for recorder in recorders}
    light = sorted(name for name in ours - theirs if not name.endswith(".recording"))
    program += "".join(f"importlib.import_module({name!r})\n" for name in light)
    subprocess.run([sys.executable, "-c", program], check=True)


def fake(folder: Path, library: str) -> Path:
    """Make an environment that is this process's own interpreter."""
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    # a link would lose the packages of this interpreter's virtual environment
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (folder / "library").write_text(library)
    return folder


RECORDER = """
from encoder_plugins.artifact.reference import Recording
from encoder_plugins.errors import Unsupported
import numpy as np, os, sys

class Recorder:
    def record(self, checkpoint, auxiliary, cases, *, trust_remote_code=False):
        print("a library prints")
        if not cases:
            raise Unsupported("nothing to record")
        if cases[0]["id"] == "crash":
            os._exit(9)
        about = {"network": os.environ["HF_HUB_OFFLINE"], "path": os.environ["PYTHONPATH"], "trusted": str(trust_remote_code)}
        outputs = {case["id"]: {"size": np.full((2,), len(os.listdir(checkpoint)))} for case in cases}
        return Recording(cases=[{**case, "seen": True} for case in cases], outputs=outputs, about=about,
                         changed={"config.json": {"name": sorted(auxiliary)[0]}})

RECORDER = Recorder()
"""


@pytest.fixture
def ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recording]:
    """Record with a ready environment, as a prep image has it, and a recorder of the test's own."""
    package = tmp_path / "site"
    package.mkdir()
    (package / "recorder_of_a_test.py").write_text(RECORDER)
    for name in ("encoder_plugins", "encoder_kernels"):
        (package / name).symlink_to(reference_environment._PACKAGE / name)
    monkeypatch.setattr(reference_environment, "_PACKAGE", package)
    monkeypatch.setenv("ENCODER_REFERENCE", str(fake(tmp_path / "environment", "sentence_transformers")))
    monkeypatch.setenv("PYTHONPATH", "/somewhere/else")
    plugin = replace(PLUGIN, recorder="recorder_of_a_test:RECORDER")
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    for number in range(3):
        (checkpoint / f"file{number}").touch()

    def run(cases: list[Case], **more: Any) -> Recording:
        return reference_environment.record(plugin, checkpoint, {"org/base": package}, cases, **more)

    return run


def test_a_ready_environment_is_used_and_only_our_package_is_on_its_path(
    ready: Callable[..., Recording], capfd: pytest.CaptureFixture[str]
) -> None:
    found = ready([{"id": "a/b", "text": "ü"}], trust_remote_code=True)
    assert list(found.cases) == [{"id": "a/b", "text": "ü", "seen": True}]
    np.testing.assert_array_equal(found.outputs["a/b"]["size"], np.full((2,), 3, np.float32))
    assert found.about == {"network": "1", "path": str(reference_environment._PACKAGE), "trusted": "True"}
    assert found.changed == {"config.json": {"name": "org/base"}}
    # standard output is prep's
    assert "a library prints" not in capfd.readouterr().out


def test_what_a_recorder_refuses_is_refused_with_its_words(ready: Callable[..., Recording]) -> None:
    with pytest.raises(Unsupported, match=r"^nothing to record$"):
        ready([])


def test_a_recorder_that_dies_is_worth_another_try(ready: Callable[..., Recording]) -> None:
    with pytest.raises(PrepareError, match="status 9") as died:
        ready([{"id": "crash"}])
    assert died.value.exit_status == 70


def test_the_environment_of_another_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENCODER_REFERENCE", str(fake(tmp_path / "environment", "gliner")))
    with pytest.raises(Unsupported, match="has the library gliner; this plugin records with sentence_transformers"):
        reference_environment.provide("sentence_transformers")


def test_a_library_without_lock_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENCODER_REFERENCE", raising=False)
    with pytest.raises(Unsupported, match="no environment of the library nobody"):
        reference_environment.provide("nobody")


def test_two_that_need_an_environment_create_it_once_and_see_no_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ENCODER_REFERENCE", raising=False)
    monkeypatch.setenv("ENCODER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(reference_environment, "_LOCKS", tmp_path / "locks")
    (tmp_path / "locks" / "small").mkdir(parents=True)
    lock = tmp_path / "locks" / "small" / "requirements.lock"
    lock.write_text("")
    created: list[list[str]] = []
    real = reference_environment._run

    def run(command: list[str]) -> None:
        created.append(command)
        real(command)

    monkeypatch.setattr(reference_environment, "_run", run)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(reference_environment.provide, ["small", "small"])
    assert first == second
    assert [command[1] for command in created] == ["venv", "pip"]
    assert reference_environment.python(first).exists()
    lock.write_text("# another content\n")
    assert reference_environment.provide("small") != first


def test_every_committed_lock_has_hashes_and_the_required_versions() -> None:
    locks = sorted(reference_environment._LOCKS.glob("*/requirements.lock"))
    assert {path.parent.name for path in locks} >= {found.reference_library for found in catalog.plugins().values()}
    for path in locks:
        text = path.read_text()
        pins = text.replace("\\\n", " ").splitlines()
        assert all("--hash=sha256:" in pin for pin in pins if pin.strip())
        assert "://" not in text
        wanted = path.with_name("requirements.in").read_text().splitlines()
        for line in (line for line in wanted if not line.startswith("#")):
            # a lock names what an extra needs, and not the extra
            pinned = re.sub(r"\[[^]]*\]", "", line)
            assert f"{pinned} " in text, (path, line)


def test_a_real_checkpoint_all_the_way(run_hub: RunHub, tmp_path: Path, progress: Progress) -> None:
    repository = "demo/all-MiniLM-L6-v2"
    with run_hub() as hub:
        request = Request(
            plugin=PLUGIN,
            source=repository,
            output=tmp_path / "key",
            revision=hub.revision_of(repository),
            endpoint=hub.address,
        )
        prepared = prepare(request, progress)
        # the library read the staged folder and sent no request
        assert set(hub.requests(repository)) == {f"GET {route} {repository}" for route in ("api", "resolve", "cdn")}
    assert manifest.verify(request.output, prepared.digest).source["repo"] == repository
    reference = references.read(request.output)
    assert len(reference.cases) == prepared.cases >= 48
    vector = reference.expected["sentence"]["vector"]
    assert vector.shape == (384,)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)
