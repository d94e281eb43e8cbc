"""What one request may ask for, and how ``serve`` hands that to the processor: one typed object, no environment.

The numbers keep a single client from holding the server: everything here is checked before the engine sees a token.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Bound = Annotated[int, Field(ge=1)]


class Limits(BaseModel):
    """The bounds of a request; ``encoder-plugins serve --limit name=value`` sets one."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    texts: Bound = 256
    """Texts in one request."""
    characters_per_text: Bound = 200_000
    """Characters (code points) of one text, without the prompt put before it."""
    characters: Bound = 1_000_000
    """Characters of all texts of one request."""
    body_bytes: Bound = 4 * 1024 * 1024
    """Bytes of one request's body; more are answered 413."""
    body_seconds: Bound = 30
    """Seconds in which a body has to arrive; later it is answered 408."""
    in_flight: Bound = 128
    """Requests at work at the same time; one more is answered 503 with Retry-After."""


class Census(BaseModel):
    """Where several server processes behind one port count together; see ``encoder_plugins.serving.http.worker_counters``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    """The file that they share."""
    processes: Bound
    """How many there will be."""


class Settings(BaseModel):
    """What ``serve`` puts under ``encoder`` in vLLM's ``--additional-config``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    plugin: str
    limits: Limits = Limits()
    census: Census | None = None
    """None where a single process serves."""
