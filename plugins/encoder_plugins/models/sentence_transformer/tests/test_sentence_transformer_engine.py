"""Every encoder that is served, on real vLLM in this process, against sentence-transformers itself.

One engine for each tiny checkpoint: the cheapest way to have the real thing. Requests go in as `LLM.encode` takes them,
which is the IO processor's way without the middleware.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoder_checkpoints.answer_cache import library_answer
from encoder_plugins.families.embedding import cases as embedding_cases
from encoder_plugins.families.embedding.format import DENSE, NORMALIZE, POOLING
from encoder_plugins.families.embedding.parity import FLOAT
from encoder_plugins.models.sentence_transformer import checkpoint, parity
from encoder_plugins.models.sentence_transformer.encoders import ENCODERS, encoder_of
from encoder_plugins.models.sentence_transformer.tests import conversion_mutants, tiny
from encoder_plugins.parity.tests import served_model
from encoder_plugins.serving.tests import in_process

pytestmark = [
    pytest.mark.engine,
    # vLLM, torch and transformers warn a lot about themselves
    pytest.mark.filterwarnings("ignore"),
]

ORACLE = "encoder_plugins.families.embedding.tests.oracle"


def by_library(function: str, folder: Path, *arguments: Any) -> Any:
    """Call a function of ``oracle`` in the library's environment."""
    return library_answer("sentence_transformers", f"{ORACLE}:{function}", str(folder), *arguments)


NAMES = [
    "bert",
    "bert-cls-raw",
    "bert-masked",
    "camembert-masked",
    "mpnet",
    "distilbert",
    "roberta",
    "xlm-roberta",
    "modernbert",
    "qwen3",
    "gemma3",
]
Answer = Callable[..., dict[str, Any]]


@pytest.fixture
def engine() -> Iterator[Callable[..., Answer]]:
    """Starts engines in this process; each gives a function from request data to the answer's data."""

    def start(model: Path, **more: Any) -> Answer:
        llm = in_process.start(
            model,
            dtype="float32",
            io_processor_plugin="encoder",
            additional_config={"encoder": {"plugin": "sentence_transformer"}},
            **more,
        )

        def answer(**data: Any) -> dict[str, Any]:
            found: dict[str, Any] = llm.encode({"data": data}, pooling_task="plugin", use_tqdm=False)[0].outputs
            return found

        return answer

    with in_process.environment():
        yield start


@pytest.mark.parametrize("name", NAMES)
def test_an_encoder_gives_the_vectors_and_scores_of_the_library(
    name: str, engine: Callable[..., Answer], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    source = tiny.build(name, tmp_path)
    model = tmp_path / "model"
    model.mkdir()
    checkpoint.CHECKPOINT.check(source, {})
    checkpoint.CHECKPOINT.convert(source, {}, model)
    answer = engine(model)
    cases = embedding_cases.cases(checkpoint.CHECKPOINT.read(model))
    worst = 0.0
    bounds = {bound.metric: bound for bound in parity.PARITY.tolerances["float32"]}
    measured: set[str] = set()
    for case, expected in zip(cases, by_library("outputs", source, cases), strict=True):
        data = answer(**parity.PARITY.body([case], FLOAT)["data"])
        (found,) = parity.PARITY.outputs(json.dumps({"data": data}).encode(), [case], FLOAT)
        metrics = parity.PARITY.compare(case, found, expected).metrics
        worst = max(worst, metrics.get("max_abs_error", 0.0))
        assert all(bounds[name].holds(value) for name, value in metrics.items()), (case, metrics)
        measured |= metrics.keys()
    assert measured == bounds.keys()
    record_property("worst", worst)
    # as many in a prompt as fit, where the encoder is ours
    texts = [case["text"] for case in cases]
    together = np.array(answer(texts=texts, encoding="float")["embeddings"], dtype=np.float32)
    expected = by_library("encode", source, texts)
    np.testing.assert_allclose(together, expected, atol=1e-5 * max(1.0, float(np.abs(together).max())))


def test_no_mistake_in_conversion_passes(tmp_path: Path) -> None:
    mutants = list(conversion_mutants.all_mutants())
    assert len(mutants) >= 10
    with in_process.environment():
        served = served_model.start("sentence_transformer", "float32", tmp_path, tiny.build("xlm-roberta", tmp_path))
        assert served.verdict(served.model).result == "Passed"
        served_model.check(served, mutants)


def test_the_modules_that_are_checked_are_those_that_vllm_knows() -> None:
    from vllm.transformers_utils import config

    assert config._ST_POOLING_MODULE_TYPES == POOLING
    assert config._ST_NORMALIZE_MODULE_TYPES == NORMALIZE
    assert config._DENSE_MODULE_TYPES - {"pylate.models.Dense.Dense"} == DENSE


def test_the_architectures_that_are_checked_are_those_that_were_compared() -> None:
    compared = {encoder.architecture for one in tiny.TINY if (encoder := encoder_of(one.architecture))}
    # the same encoder under the name that its causal language model has
    assert compared | {"Qwen3ForCausalLM"} == {encoder.architecture for encoder in ENCODERS.values()}
