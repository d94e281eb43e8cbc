"""EmbeddingGemma on real vLLM in this process: equal to the library, which no mistake in conversion is. One engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from encoder_plugins.models.embeddinggemma.tests import conversion_mutants, tiny
from encoder_plugins.parity.tests.served_model import Served, check, start
from encoder_plugins.serving.tests.in_process import environment

pytestmark = [
    pytest.mark.engine,
    # vLLM, torch and transformers warn a lot about themselves
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(1200),
]

# of the built-in cases: enough to show each mistake
CASES = (
    *("sentence", "mixed-case", "chinese", "paragraph", "repeated-sentence", "long", "beyond-limit"),
    *("query", "document", "title-0", "own-prompt", "size-128", "size-160-raw", "raw", "score-question"),
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The prepared tiny checkpoint, in an engine."""
    folder = tmp_path_factory.mktemp("gemma")
    with environment():
        yield start("embeddinggemma", "float32", folder, tiny.build(folder))


def test_every_case_of_the_parity_check_passes(served: Served, record_property: Callable[[str, object], None]) -> None:
    found = served.verdict(served.model)
    record_property("verdict", found.message)
    assert found.result == "Passed", found.message


def test_no_mistake_in_conversion_passes(served: Served) -> None:
    mutants = list(conversion_mutants.all_mutants())
    assert len(mutants) >= 10
    served.cases = CASES
    check(served, mutants)
