"""The vector of each text's rows and the Dense modules behind it, against torch text by text."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch

with warnings.catch_warnings():
    # vLLM warns of itself when it is imported
    warnings.simplefilter("ignore")
    from vllm.pooling_params import PoolingParams
    from vllm.v1.pool.metadata import PoolingMetadata, PoolingStates

    from encoder_plugins.backbones import token_marks
    from encoder_plugins.families.embedding.pooling import SingleVectorPooler
    from encoder_plugins.families.retrieval.dense import DenseSpec
    from encoder_plugins.families.retrieval.dense_layers import DenseChain

pytestmark = pytest.mark.filterwarnings("ignore")

LENGTHS = [3, 1, 40, 7]
# the same texts, the middle ones in one request
REQUESTS = [[3], [1, 40], [7]]


def metadata(requests: list[list[int]], *, use_activation: bool = False) -> PoolingMetadata:
    """Return what vLLM's model runner gives a pooler for requests of texts of these lengths."""
    lengths = list(map(sum, requests))
    extras = [token_marks.encode(texts) if len(texts) > 1 else None for texts in requests]
    made = PoolingMetadata(
        prompt_lens=torch.tensor(lengths),
        prompt_token_ids=None,
        prompt_token_ids_cpu=None,
        pooling_params=[
            PoolingParams(task="embed", use_activation=use_activation, extra_kwargs=extra) for extra in extras
        ],
        pooling_states=[PoolingStates() for _ in lengths],
    )
    made.build_pooling_cursor(np.asarray(lengths), torch.tensor(lengths), torch.device("cpu"))
    return made


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("pooling", "vector_of"),
    [("MEAN", lambda rows: rows.mean(0)), ("CLS", lambda rows: rows[0]), ("LAST", lambda rows: rows[-1])],
)
def test_a_vector_is_that_of_its_text_alone(
    pooling: str, vector_of: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    chain = DenseChain([DenseSpec(inputs=8, outputs=5, bias=True, activation="Tanh")])
    pooler = SingleVectorPooler(pooling, chain)
    # rows of padding behind, as a CUDA graph has them
    rows = torch.randn(sum(LENGTHS) + 9, 8).to(dtype)
    answers = pooler(rows, metadata(REQUESTS))
    assert [tuple(answer.shape) for answer in answers] == [(5,), (2, 5), (5,)]
    found = torch.cat([answer.reshape(-1, 5) for answer in answers])
    assert found.dtype == torch.float32
    for vector, text in zip(found, torch.split(rows[: sum(LENGTHS)], LENGTHS), strict=True):
        torch.testing.assert_close(vector, chain(vector_of(text.float())))
        (alone,) = pooler(text, metadata([[len(text)]]))
        torch.testing.assert_close(vector, alone, rtol=0, atol=1e-6)
    unit = pooler(rows, metadata(REQUESTS, use_activation=True))
    torch.testing.assert_close(torch.cat([each.reshape(-1, 5) for each in unit]), torch.nn.functional.normalize(found))


def test_an_unknown_pooling_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="seq_pooling_type is MAX"):
        SingleVectorPooler("MAX", DenseChain([]))


def test_the_only_task_is_one_vector_per_text() -> None:
    assert SingleVectorPooler("MEAN", DenseChain([])).get_supported_tasks() == {"embed"}
