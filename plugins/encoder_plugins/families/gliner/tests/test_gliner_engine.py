"""Each plugin on real vLLM in this process: equal to the library, and to themselves in any company."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoder_checkpoints.sentence import WORDS
from encoder_plugins import catalog
from encoder_plugins.families.gliner import payload
from encoder_plugins.families.gliner.payload import encode
from encoder_plugins.families.gliner.tests.library import Library
from encoder_plugins.plugin import resolve
from encoder_plugins.serving.tests import in_process

pytestmark = [
    pytest.mark.engine,
    # vLLM, torch and transformers warn a lot about themselves
    pytest.mark.filterwarnings("ignore"),
]

# each plugin with the head of its sample, and one with the other head that it serves
CHECKPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "deberta_gliner": ("deberta_gliner", {}),
    "deberta_gliner by word": ("deberta_gliner", {"span_mode": "token_level"}),
    "mmbert_gliner": ("mmbert_gliner", {}),
    "modernbert_gliner_rerank": ("modernbert_gliner_rerank", {}),
    "mt5_gliner": ("mt5_gliner", {}),
}
LABELS = ["person", "city", "magazine", "machine"]
# more than the longest text, and than one step of the scheduler takes of the whole batch
STEP = 10_000
Prompt = tuple[list[int], dict[str, Any]]
Answers = Callable[[Sequence[Prompt]], list[np.ndarray]]


def texts() -> list[tuple[str, list[str]]]:
    """Texts of 1 to 120 words, with 1 to 4 labels, some twice."""
    counts = [1, 5, 17, 40, 3, 120, 64, 17, 2, 90, 11, 1]
    return [
        (" ".join((WORDS * 8)[number : number + count]), LABELS[: 1 + number % 4])
        for number, count in enumerate(counts)
    ]


def prompt(library: Library, text: str, labels: list[str], threshold: float) -> tuple[Prompt, np.ndarray]:
    """Return what the engine gets for a text, and the library's logits: `[words, widths, labels]`, or of words `[words, labels, 3]`."""
    ids, words, marked = library.positions(text, labels)
    return (ids, encode(words, marked, threshold)), library.logits(text, labels).numpy()


def start(model: Path) -> Answers:
    """Start an engine in this process; gives a function from prompts to the pooler's rows."""
    from vllm import PoolingParams

    llm = in_process.start(model, dtype="float32", max_num_batched_tokens=STEP, max_num_seqs=8)

    def answers(prompts: Sequence[Prompt]) -> list[np.ndarray]:
        outputs = llm.encode(
            [{"prompt_token_ids": ids} for ids, _ in prompts],
            [PoolingParams(task="token_classify", extra_kwargs=extra) for _, extra in prompts],
            pooling_task="token_classify",
            use_tqdm=False,
        )
        return [output.outputs.data.numpy() for output in outputs]

    return answers


@pytest.fixture(scope="module")
def environment() -> Any:
    """What an engine in this process needs of the environment."""
    with in_process.environment():
        yield


@pytest.fixture(scope="module", params=list(CHECKPOINTS.values()), ids=list(CHECKPOINTS))
def served(request: pytest.FixtureRequest, environment: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The library and the engine on one checkpoint, as it was published and as it was prepared."""
    from encoder_checkpoints import gliner

    plugin, options = request.param
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = gliner.build(tmp_path_factory.mktemp("source") / "published", plugin, **options)
        model = tmp_path_factory.mktemp("model")
        resolve(catalog.get(plugin).checkpoint).convert(source, {}, model)
        return Library(source), start(model)


def by_word(rows: np.ndarray) -> bool:
    """Return whether rows are scored words, and not spans."""
    return bool(rows.shape[1] == payload.TOKEN_COLUMNS)


def test_logits_are_those_of_the_library(served: tuple[Library, Answers], record_property: Any) -> None:
    library, answers = served
    sent = [prompt(library, text, labels, 0.0) for text, labels in texts()]
    worst = 0.0
    for rows, (_, expected) in zip(answers([prompt for prompt, _ in sent]), sent, strict=True):
        found = np.full(expected.shape, np.nan, np.float32)
        if by_word(rows):
            word, label = rows[:, :2].astype(int).T
            found[word, label] = rows[:, 2:]
            inside = np.ones(expected.shape[:2], bool)
        else:
            start, width, label = rows[:, :3].astype(int).T
            found[start, width, label] = rows[:, 3]
            words, widths, _ = expected.shape
            inside = np.arange(words)[:, None] + np.arange(widths)[None] < words
        assert (np.isfinite(found).all(-1) == inside).all()
        worst = max(worst, float(np.abs(found - expected)[inside].max()))
    record_property("worst", worst)
    assert worst <= 1e-4


def test_an_answer_is_the_same_in_any_company(served: tuple[Library, Answers]) -> None:
    library, answers = served
    prompts = [prompt(library, text, labels, 0.4)[0] for text, labels in texts()]
    # beside odd ones, which get nothing
    odd: list[Prompt] = [([5, 6, 7], {}), (prompts[0][0], encode([10_000], [1], 0.5))]
    alone = [answers([prompt])[0] for prompt in prompts]
    assert sum(len(rows) for rows in alone) > 20
    order = np.random.default_rng(0).permutation(len(prompts)).tolist()
    for company in (prompts, [prompts[index] for index in order], [odd[0], *prompts, odd[1], *prompts]):
        for (ids, extra), rows in zip(company, answers(company), strict=True):
            if (ids, extra) in odd:
                assert len(rows) == 0
                continue
            expected = alone[next(i for i, prompt in enumerate(prompts) if prompt[0] == ids and prompt[1] == extra)]
            keys = 2 if by_word(rows) else 3
            by = [np.lexsort(table[:, keys - 1 :: -1].T) for table in (rows, expected)]
            assert (rows[by[0]][:, :keys] == expected[by[1]][:, :keys]).all()
            logits, others = rows[by[0]][:, keys:], expected[by[1]][:, keys:]
            # a batch of another size adds up in another order
            np.testing.assert_allclose(logits, others, atol=5e-5)
            np.testing.assert_allclose(1 / (1 + np.exp(-logits)), 1 / (1 + np.exp(-others)), atol=1e-5)
