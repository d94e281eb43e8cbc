"""The declaration of an encoder family: one frozen object of strings and numbers, from which everything else follows.

Standard library only: the operator reads declarations, and must never import torch or vLLM by doing so.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Accelerator = Literal["cpu", "nvidia"]
Task = Literal["embed", "classify", "token_embed", "token_classify"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One HTTP path that a plugin answers with ``POST``.

    Attributes:
        path: The path, e.g. ``/v1/embeddings``.
        schema: Which of the processor's request shapes the body has; the processor gets it with every body.
        summary: One sentence for the OpenAPI document.
    """

    path: str
    schema: str
    summary: str


POOLING = Route(path="/pooling", schema="pooling", summary="Answer a request of this plugin's own shape.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One bound on what a client may send.

    Attributes:
        name: How ``spec.serving.limits`` and ``encoder-plugins serve --limit`` call it.
        default: The bound where nobody sets another; a whole number of 1 or more.
        description: One sentence for the documentation, with the unit.
    """

    name: str
    default: int
    description: str


REQUEST_LIMITS = (
    Limit(name="body_bytes", default=4 << 20, description="Bytes of a request's body; a larger one is answered 413."),
    Limit(name="body_seconds", default=30, description="Seconds in which a body must arrive; else it is answered 408."),
    Limit(
        name="header_seconds",
        default=10,
        description="Seconds in which the headers of a request must arrive; else the connection is closed.",
    ),
    Limit(
        name="in_flight",
        default=128,
        description="Requests in flight at the same time; one more is answered 503 with Retry-After.",
    ),
)
"""What every plugin's limits begin with."""

TEXT_LIMITS = (
    Limit(name="texts", default=256, description="Texts of one request."),
    Limit(name="characters_per_text", default=200_000, description="Characters (code points) of one text."),
    Limit(name="characters", default=1_000_000, description="Characters of all texts of one request."),
)
"""Further limits of plugins that take texts."""

IMAGE_LIMITS = (
    Limit(name="images", default=32, description="Images of one request."),
    Limit(name="image_bytes", default=20 << 20, description="Bytes of the file of one image, before base64."),
    Limit(name="image_pixels", default=40_000_000, description="Pixels of one image, as its file has them."),
    Limit(
        name="image_seconds",
        default=10,
        description="Seconds in which all images of a request that are addresses must have been fetched.",
    ),
    Limit(
        name="image_cache_bytes",
        default=128 << 20,
        description="Bytes of decoded pixels that each API server keeps of the images, and pages of PDFs, that came last; 1 keeps none.",
    ),
)
"""Further limits of plugins that take images."""

PDF_LIMITS = (
    Limit(name="pdf_bytes", default=20 << 20, description="Bytes of the file of a PDF, before base64."),
    Limit(
        name="pdf_fetch_seconds",
        default=10,
        description="Seconds in which all PDFs of a request that are addresses must have been fetched.",
    ),
    Limit(name="pdf_pages", default=32, description="Pages of all PDFs that one request renders."),
    Limit(name="pdf_dpi", default=300, description="Dots per inch at which pages are rendered."),
    Limit(
        name="pdf_page_pixels", default=20_000_000, description="Pixels of one rendered page, by its size and `dpi`."
    ),
    Limit(
        name="pdf_seconds",
        default=10,
        description="Seconds that a processor may be busy with the pages of one request; by the clock, four times as many.",
    ),
    Limit(
        name="pdf_memory_bytes",
        default=1 << 30,
        description="Bytes of address space of the process that renders PDFs; each API server has one.",
    ),
    Limit(
        name="pdf_in_flight",
        default=8,
        description="Requests with PDFs that are fetched, wait, or are rendered, in one API server; one more is answered 503 with"
        " Retry-After.",
    ),
)
"""Further limits of plugins that render PDFs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One choice that a user makes about a preparation, beyond what every plugin has.

    Attributes:
        name: How ``spec.prepare.parameters`` and ``encoder-plugins prepare --parameter`` call it, in camelCase. Plugins
            that share a name share its type.
        values: The values that it can have.
        several: Whether it is a list of these values; otherwise it is one of them.
        description: One sentence for the documentation.
    """

    name: str
    values: tuple[str, ...]
    several: bool = False
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One encoder family, as its folder declares it.

    References are ``"package.module:Name"`` strings, resolved only by the process that needs the object.

    Attributes:
        name: The folder's name, and the value of ``spec.plugin`` in an EncoderModel.
        summary: One sentence for the documentation.
        licence_note: What the checkpoints' licence forbids (commercial use, say); None where nothing is known.
        task: vLLM's pooling task of the engine. Never ``plugin``: vLLM's GPU runner does not support it.
        processor: The class that turns request bodies into prompts, and pooled tensors into responses.
        checkpoint: The object that selects, checks and converts a checkpoint, and derives engine settings from it.
        recorder: The object that records reference outputs of the original library (reference environment only).
        parity: The object that holds cases and tolerances (numpy only; the operator's image).
        reference_library: The folder of ``images/reference`` that locks the original library.
        prep_version: Part of an artifact's key: raise it when prep would write something else.
        dtypes: The default dtype by accelerator.
        example_model: A checkpoint to try it with.
        architectures: Model classes to register with vLLM, by architecture name. Only names that neither vLLM nor
            transformers uses.
        routes: The HTTP paths that the plugin answers.
        limits: What one request may contain: ``REQUEST_LIMITS`` and what the plugin adds.
        extra: The extra of this distribution that the images of its engines have in addition; None for none. Python only.
        parameters: What a user may choose about the preparation. Where there are any, checkpoint and recorder objects have
            ``configured``; see ``encoder_plugins.prep.checkpoint.Configurable``.
        adapted: What the names of the layers begin with that a LoRA adapter may change; empty where vLLM decides.
        label_sets: Whether a checkpoint is prepared with label sets that requests name. Where it is, the checkpoint object has
            ``refused_label``, the parity object ``label_set_cases``, and the processor ``start``.
    """

    name: str
    summary: str
    licence_note: str | None = None
    task: Task
    processor: str
    checkpoint: str
    recorder: str
    parity: str
    reference_library: str
    prep_version: int
    dtypes: tuple[tuple[Accelerator, str], ...]
    example_model: str
    architectures: Mapping[str, str] = field(default_factory=dict)
    routes: tuple[Route, ...] = (POOLING,)
    limits: tuple[Limit, ...] = REQUEST_LIMITS
    parameters: tuple[Parameter, ...] = ()
    label_sets: bool = False
    adapted: tuple[str, ...] = ()
    extra: str | None = None

    @property
    def takes_images(self) -> bool:
        """Whether requests may hold images."""
        return any(limit.name == IMAGE_LIMITS[0].name for limit in self.limits)

    def dtype(self, accelerator: Accelerator) -> str:
        """Return the default dtype of this family on ``accelerator``."""
        return dict(self.dtypes)[accelerator]


def resolve(reference: str) -> Any:
    """Import the object that a ``"package.module:Name"`` string names."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
