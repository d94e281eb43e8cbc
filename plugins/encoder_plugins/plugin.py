"""The declaration of an encoder family: one frozen object of strings, from which everything else follows.

Standard library only: the operator reads declarations, and must never import torch or vLLM by doing so.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Literal

Accelerator = Literal["cpu", "nvidia"]
Task = Literal["embed", "classify", "token_embed", "token_classify"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One encoder family, as its folder declares it.

    References are ``"package.module:Name"`` strings, resolved only by who needs the object.

    Attributes:
        name: The folder's name, and what ``spec.plugin`` of an EncoderModel says.
        summary: One sentence for the documentation.
        task: vLLM's pooling task of the engine. Never ``plugin``: vLLM's GPU runner does not know it.
        io_processor: The class that turns request data into prompts, and pooled tensors into an answer.
        reference: The function that runs the original library (imports torch; prep image only).
        parity: The object that holds cases and tolerances (numpy only; the operator's image).
        prep_version: Part of an artifact's key: raise it when prep would write something else.
        prep_extra: The extra of our distribution that brings the original library.
        dtypes: The default number format by accelerator.
        engine_args: What vLLM needs for this family on every accelerator.
        example_model: A checkpoint to try it with.
        architecture: The name to register with vLLM; None where vLLM's own model classes serve.
        model: The model class for ``architecture``.
    """

    name: str
    summary: str
    task: Task
    io_processor: str
    reference: str
    parity: str
    prep_version: int
    prep_extra: str
    dtypes: tuple[tuple[Accelerator, str], ...]
    engine_args: tuple[str, ...]
    example_model: str
    architecture: str | None = None
    model: str | None = None

    def dtype(self, accelerator: Accelerator) -> str:
        """Return the number format that this family is served in on ``accelerator``, unless told otherwise."""
        return dict(self.dtypes)[accelerator]


def resolve(reference: str) -> Any:
    """Import what a ``"package.module:Name"`` string names."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
