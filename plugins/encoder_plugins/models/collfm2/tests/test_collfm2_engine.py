"""ColLFM2 on real vLLM passes its parity check, and no mistake in its conversion does.

One engine in this process, whose model is exchanged. Servers of the sample checkpoint are in the matrices of tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from encoder_checkpoints.original import original
from encoder_plugins.artifact.reference import Reference
from encoder_plugins.models.collfm2 import PLUGIN
from encoder_plugins.models.collfm2.checkpoint import CHECKPOINT
from encoder_plugins.models.collfm2.parity import PARITY
from encoder_plugins.models.collfm2.tests import conversion_mutants, tiny
from encoder_plugins.parity.tests import served_model

pytestmark = [
    pytest.mark.engine,
    # vLLM, torch and transformers warn about themselves
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(1200),
]

OUTPUTS = "encoder_plugins.families.vision.tests.oracle:outputs"
# enough to find every mistake, and few enough for a check to take a second
CASES = frozenset({"query-question", "document-question", "image-odd", "image-page", "image-small", "score-mixed"})
OPTIONS = {"limit_mm_per_prompt": {"image": 1}, "mm_processor_cache_gb": 0}


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    """What an engine in this process needs of the environment."""
    with served_model.environment():
        yield


def test_rows_and_scores_are_those_of_the_library(tmp_path: Path) -> None:
    published, model = tiny.build(tmp_path / "published")[0], tmp_path / "model"
    model.mkdir()
    CHECKPOINT.check(published, {})
    CHECKPOINT.convert(published, {}, model)
    cases = PARITY.cases(published, ())
    expected = original("sauerkrautlm_colpali").call(OUTPUTS, PLUGIN.name, str(published), cases)
    reference = Reference(artifact="", digest="", plugin=PLUGIN.name, cases=tuple(cases), expected=expected)
    running = served_model.Running(options=OPTIONS)
    served = served_model.Served(PLUGIN, reference, model, tmp_path / "mutants", "float32", running=running)
    verdict = served.verdict(served.model)
    assert verdict.result == "Passed", verdict.message
    print(verdict.message)
    served.cases = CASES
    served_model.check(served, conversion_mutants.of())
