"""Fixtures of all operator tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from encoder_plugins import catalog


@pytest.fixture
def first_prep_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every plugin the prep version of release 0.1.0, whose names and hashes some tests compare with."""
    first = {name: replace(plugin, prep_version=1) for name, plugin in catalog.plugins().items()}
    monkeypatch.setattr(catalog, "plugins", lambda: first)
