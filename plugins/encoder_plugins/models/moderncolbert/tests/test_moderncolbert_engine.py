"""Every form of checkpoint on real vLLM passes its parity check, and no mistake in its conversion does.

One engine in this process, whose model is exchanged. Servers of the sample checkpoint are in the matrices of tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from encoder_plugins.families.retrieval.tests import checkpoint_forms
from encoder_plugins.models.moderncolbert.tests import conversion_mutants, tiny
from encoder_plugins.parity.tests import served_model
from encoder_plugins.serving.tests import in_process

pytestmark = [
    pytest.mark.engine,
    # vLLM, torch and transformers warn about themselves
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(1200),
]


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    """What an engine in this process needs of the environment."""
    with in_process.environment():
        yield


@pytest.fixture(scope="module")
def running() -> served_model.Running:
    """The engine of all checkpoints."""
    return served_model.Running(most_tokens=tiny.POSITIONS)


@pytest.mark.parametrize("name", [one.name for one in tiny.TINY])
def test_rows_and_scores_are_those_of_the_library(name: str, running: served_model.Running, tmp_path: Path) -> None:
    published = tiny.build(name, tmp_path)
    checkpoint_forms.check("moderncolbert", published, conversion_mutants.of(name), running, tmp_path)
