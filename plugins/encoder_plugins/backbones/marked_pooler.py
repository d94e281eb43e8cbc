"""What the poolers of our models share: the requests of a batch, and their marks for the encoder."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from vllm.model_executor.layers.pooler.abstract import Pooler
from vllm.model_executor.layers.pooler.common import PoolingParamsUpdate
from vllm.v1.pool.metadata import PoolingMetadata

from encoder_plugins.backbones import token_marks
from encoder_plugins.backbones.mark_channel import TokenMarksUpdate


class PooledRequest(NamedTuple):
    """One request of a batch.

    Attributes:
        extra: Its ``extra_kwargs``; None where it has none.
        tokens: Its tokens in the batch.
        whole: Whether those are all of its tokens. One that is not whole has no rows for what comes later.
    """

    extra: dict[str, Any] | None
    tokens: int
    whole: bool

    def texts(self) -> NDArray[np.int32]:
        """Return the tokens of each of its texts, `[texts]`; one text where it has no marks, or none that fit."""
        marks = token_marks.decode(self.extra, self.tokens)
        return np.asarray([self.tokens], np.int32) if marks is None else marks.tokens


class MarkedPooler(Pooler):  # type: ignore[misc]
    """A pooler of requests that may hold several texts.

    Attributes:
        task: vLLM's name of the one task.
    """

    task: ClassVar[str]

    def get_supported_tasks(self) -> set[str]:
        """Return the one task."""
        return {self.task}

    def get_pooling_updates(self, task: str) -> PoolingParamsUpdate:
        """Return what brings the marks of a request's tokens into the encoder."""
        del task
        return TokenMarksUpdate()


def requests_of(metadata: PoolingMetadata) -> list[PooledRequest]:
    """Return the requests of a batch, in order."""
    cursor = metadata.get_pooling_cursor()
    lengths, prompts = cursor.num_scheduled_tokens_cpu.tolist(), cursor.prompt_lens_cpu.tolist()
    return [
        PooledRequest(params.extra_kwargs, length, length == prompt)
        for params, length, prompt in zip(metadata.pooling_params, lengths, prompts, strict=True)
    ]
