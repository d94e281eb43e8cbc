"""The library on tiny checkpoints of each family, each built once."""

from __future__ import annotations

import pytest

from encoder_plugins.families.gliner.tests.library import Library, built

PLUGINS = ("deberta_gliner", "mmbert_gliner", "mt5_gliner")


@pytest.fixture(scope="session")
def libraries() -> dict[str, Library]:
    """The libraries that were built so far, by plugin."""
    return {}


@pytest.fixture(params=PLUGINS)
def library(
    request: pytest.FixtureRequest, libraries: dict[str, Library], tmp_path_factory: pytest.TempPathFactory
) -> Library:
    """The library on a checkpoint of each family."""
    plugin = request.param
    if plugin not in libraries:
        libraries[plugin] = built(plugin, tmp_path_factory.mktemp(plugin))
    return libraries[plugin]


@pytest.fixture
def one(libraries: dict[str, Library], tmp_path_factory: pytest.TempPathFactory) -> Library:
    """The library on one checkpoint, for what does not depend on the family."""
    if PLUGINS[0] not in libraries:
        libraries[PLUGINS[0]] = built(PLUGINS[0], tmp_path_factory.mktemp(PLUGINS[0]))
    return libraries[PLUGINS[0]]
