"""A mistake in the conversion of a retriever is never served in the types that GPUs use either.

The engine tests of the plugins make each mistake in float32. Here the comparison has to see it through the rounding of the type.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from encoder_plugins.families.retrieval.tests.checkpoint_forms import CASES
from encoder_plugins.models.colbert.tests import conversion_mutants as of_colbert
from encoder_plugins.models.colbert.tests import tiny as colbert
from encoder_plugins.models.embeddinggemma.tests import conversion_mutants as of_gemma
from encoder_plugins.models.embeddinggemma.tests import tiny as gemma
from encoder_plugins.models.embeddinggemma.tests.test_embeddinggemma_engine import CASES as GEMMA_CASES
from encoder_plugins.models.lfm2_colbert.tests import conversion_mutants as of_lfm2
from encoder_plugins.models.lfm2_colbert.tests import tiny as lfm2
from encoder_plugins.models.moderncolbert.tests import conversion_mutants as of_modern
from encoder_plugins.models.moderncolbert.tests import tiny as modern
from encoder_plugins.parity.tests.mutants import Mutant
from encoder_plugins.parity.tests.served_model import check, start
from encoder_plugins.serving.tests.in_process import environment

pytestmark = [
    # vLLM, torch and transformers warn about themselves
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(1800),
]


@dataclass(frozen=True)
class Form:
    """A form of a plugin's checkpoints that has mistakes.

    Attributes:
        plugin: The plugin's name.
        build: Writes the tiny checkpoint below a folder.
        mutants: The mistakes.
        cases: Ids of the cases that are sent.
    """

    plugin: str
    build: Callable[[Path], Path]
    mutants: Sequence[Mutant]
    cases: Collection[str] = CASES


def _forms() -> Mapping[str, Form]:
    found = {"embeddinggemma": Form("embeddinggemma", gemma.build, list(of_gemma.all_mutants()), GEMMA_CASES)}
    for plugin, tiny, conversion in (
        ("moderncolbert", modern, of_modern),
        ("lfm2_colbert", lfm2, of_lfm2),
        ("colbert", colbert, of_colbert),
    ):
        for one in tiny.TINY:
            if mutants := conversion.of(one.name):
                found[f"{plugin}-{one.name}"] = Form(plugin, _builder(tiny.build, one.name), mutants)
    return found


def _builder(build: Callable[[str, Path], Path], name: str) -> Callable[[Path], Path]:
    return lambda folder: build(name, folder)


FORMS = _forms()


@pytest.fixture(autouse=True)
def variables() -> Iterator[None]:
    """What an engine in this process needs of the environment."""
    with environment():
        yield


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.parametrize("name", FORMS)
def test_no_mistake_in_conversion_passes_in_bfloat16(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    check(start(form.plugin, "bfloat16", tmp_path, form.build(tmp_path), form.cases), form.mutants)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FORMS)
def test_no_mistake_in_conversion_passes_on_a_gpu(name: str, dtype: str, tmp_path: Path) -> None:
    form = FORMS[name]
    if form.plugin == "embeddinggemma" and dtype == "float16":
        pytest.skip("refused in float16: this encoder overflows")
    check(start(form.plugin, dtype, tmp_path, form.build(tmp_path), form.cases), form.mutants)
