"""The three GLiNER plugins on a GPU: padded CUDA graphs, linear layers in 8 bits, and two GPUs, against the library on the CPU."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from encoder_checkpoints.sentence import WORDS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    # torch and transformers warn a lot about themselves
    pytest.mark.filterwarnings("ignore"),
]

PLUGINS = ["deberta_gliner", "mmbert_gliner", "mt5_gliner"]
# even numbers of heads, so that two ranks can share them
ENCODERS: dict[str, dict[str, int]] = {"deberta_gliner": {"hidden_size": 128, "num_attention_heads": 4}}
LABELS = ["person", "city", "magazine", "machine"]
# graphs of two sizes: nearly every step is padded, most of them by far
GRAPHS = {"compilation_config": {"cudagraph_capture_sizes": [16, 4096]}, "max_num_batched_tokens": 4096}
# how far scores may be from the library's in float32: at most, and as the root of the mean square. Fewer bits move single scores of
# random weights far, but not many of them: scores of another text would be 0.3 and more away in the mean
BFLOAT16, BFLOAT16_MEAN, FP8_MEAN = 0.25, 0.05, 0.12
# how far from itself in other company: a product over a batch of another size may be summed in another order
ITSELF = 1e-3

Scores = NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """A prepared checkpoint, prompts, and the library's scores of each, `[words, widths, labels]`, nan outside the text."""

    model: Path
    prompts: list[tuple[list[int], list[int], list[int]]]
    expected: list[Scores]

    def run(self, rounds: list[list[int]], **arguments: Any) -> tuple[list[list[Scores]], dict[str, Any]]:
        """Send rounds of requests to an engine of its own; return the scores of each round, and what the engine was."""
        job = self.model.with_name("job.json")
        given = {"model": str(self.model), "prompts": self.prompts, "rounds": rounds}
        job.write_text(json.dumps({**given, "arguments": {"dtype": "bfloat16", **arguments}}), encoding="utf-8")
        engine = Path(__file__).with_name("gpu_engine.py")
        done = subprocess.run([sys.executable, str(engine), str(job)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
        found = json.loads(job.with_suffix(".answers").read_text(encoding="utf-8"))
        return [
            [self._scores(place, np.asarray(rows)) for place, rows in zip(places, answers, strict=True)]
            for places, answers in zip(rounds, found["answers"], strict=True)
        ], found["about"]

    def _scores(self, place: int, rows: NDArray[Any]) -> Scores:
        scores = np.full_like(self.expected[place], np.nan)
        at = rows[:, :3].astype(int)
        scores[at[:, 0], at[:, 1], at[:, 2]] = 1 / (1 + np.exp(-rows[:, 3]))
        assert (np.isnan(scores) == np.isnan(self.expected[place])).all()
        return scores

    def errors(self, found: list[Scores]) -> tuple[float, float]:
        """Return the largest difference from the library, and the root of the mean square of all."""
        both = [np.abs(one - other) for one, other in zip(found, self.expected, strict=True)]
        every = np.concatenate([one[~np.isnan(one)] for one in both])
        return float(every.max()), float(np.sqrt((every**2).mean()))


@pytest.fixture(scope="module", params=PLUGINS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Texts of 1 to 110 words with 1 to 4 labels, on a small checkpoint of each family."""
    from encoder_checkpoints import gliner

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from encoder_plugins.families.gliner.tests.library import MAX_WORDS, Library

        folder = tmp_path_factory.mktemp(request.param)
        encoder = ENCODERS.get(request.param)
        source = gliner.build(folder / "source", request.param, encoder=encoder, max_len=MAX_WORDS)
        model = folder / "model"
        model.mkdir()
        importlib.import_module(f"encoder_plugins.models.{request.param}.checkpoint").CHECKPOINT.convert(
            source, {}, model
        )
        library = Library(source)
        prompts, expected = [], []
        for number, count in enumerate([1, 5, 17, 40, 3, 110, 64, 17, 2, 90, 11, 1]):
            text, labels = " ".join((WORDS * 8)[number : number + count]), LABELS[: 1 + number % 4]
            prompts.append(library.positions(text, labels))
            scores = torch.sigmoid(library.logits(text, labels)).float().numpy().copy()
            words, widths, _ = scores.shape
            scores[np.arange(words)[:, None] + np.arange(widths)[None] >= words] = np.nan
            expected.append(scores)
    # scores that are all alike would hide that answers were exchanged
    assert np.nanstd(expected[5]) > 0.1
    return Case(model, prompts, expected)


def test_an_answer_is_the_same_in_a_padded_graph(case: Case, record_property: Any) -> None:
    every = list(range(len(case.prompts)))
    order = np.random.default_rng(0).permutation(every).tolist()
    # after all together a graph's buffers hold rows of every text behind those of the one
    rounds = [every, *([place] for place in every), order, every[:3], every[3:7]]
    found, about = case.run(rounds, **GRAPHS)
    assert about["graphs"] != "NONE"
    assert about["graph sizes"] == about["whole graphs"] == [16, 4096]
    worst = max(
        float(np.nanmax(np.abs(one - found[0][place])))
        for places, scores in zip(rounds, found, strict=True)
        for place, one in zip(places, scores, strict=True)
    )
    errors = case.errors(found[0])
    record_property("worst", {"from all together": worst, "from the library": errors})
    assert worst <= ITSELF
    assert errors[0] <= BFLOAT16
    assert errors[1] <= BFLOAT16_MEAN


def test_without_graphs_the_rows_are_the_same(case: Case, record_property: Any) -> None:
    found, about = case.run([list(range(len(case.prompts)))], enforce_eager=True)
    errors = case.errors(found[0])
    record_property("worst", errors)
    assert about["graphs"] == "NONE"
    assert about["whole graphs"] == []
    assert errors[0] <= BFLOAT16
    assert errors[1] <= BFLOAT16_MEAN


def test_linear_layers_in_8_bits(case: Case, record_property: Any) -> None:
    every = list(range(len(case.prompts)))
    (together, *alone), about = case.run([every, *([place] for place in every)], quantization="fp8", **GRAPHS)
    errors = case.errors(together)
    worst = max(float(np.nanmax(np.abs(one[0] - other))) for one, other in zip(alone, together, strict=True))
    record_property("worst", {"from alone": worst, "from the library": errors})
    assert about["weights of 8 bits"][0] >= 8
    assert worst <= ITSELF
    assert errors[1] <= FP8_MEAN


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two ranks need two GPUs")
@pytest.mark.parametrize("quantization", [None, "fp8"])
def test_two_ranks(case: Case, quantization: str | None, record_property: Any) -> None:
    every = list(range(len(case.prompts)))
    found, about = case.run([every], tensor_parallel_size=2, quantization=quantization, **GRAPHS)
    errors = case.errors(found[0])
    record_property("worst", errors)
    assert about["ranks"] == 2
    assert errors[1] <= (FP8_MEAN if quantization else BFLOAT16_MEAN)
