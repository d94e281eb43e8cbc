"""ColLFM2 on real vLLM passes its parity check, and no mistake in its conversion does.

One engine in this process, whose model is exchanged. Servers of the sample checkpoint are in the matrices of tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from encoder_plugins.families.vision.tests import engine_check
from encoder_plugins.models.collfm2 import PLUGIN
from encoder_plugins.models.collfm2.tests import conversion_mutants, tiny
from encoder_plugins.serving.tests import in_process

pytestmark = [
    pytest.mark.engine,
    # vLLM, torch and transformers warn about themselves
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(1200),
]

ORACLE = ("encoder_plugins.families.vision.tests.oracle:outputs", PLUGIN.name)
CASES = frozenset({"query-question", "document-question", "image-odd", "image-page", "image-small", "score-mixed"})


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    """What an engine in this process needs of the environment."""
    with in_process.environment():
        yield


def test_rows_and_scores_are_those_of_the_library(tmp_path: Path) -> None:
    published = tiny.build(tmp_path / "published")[0]
    engine_check.check(PLUGIN, published, ORACLE, conversion_mutants.of(), cases=CASES, modalities={"image": 1})
