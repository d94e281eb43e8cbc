"""From the bytes of a body to a checked request: one strict pass, and a sentence for whoever sent something else.

Pure: nothing here knows a model, a tokenizer or a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from encoder_plugins.errors import InvalidRequest


class Data(BaseModel):
    """The ``data`` of a request, as a plugin's subclass describes it: exact types, and no field it does not know."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True)


D = TypeVar("D", bound=Data)


class Envelope(BaseModel, Generic[D]):
    """The body of ``POST /pooling``."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    model: str | None = None
    """Checked where it is there; a server serves one model."""
    data: D


def parse_body(body: bytes, data_type: type[D]) -> Envelope[D]:
    """Parse and check ``body`` in one pass.

    Raises:
        InvalidRequest: It is no JSON (NaN and lone surrogates are none), or not the request that ``data_type`` describes.
    """
    try:
        return Envelope[data_type].model_validate_json(body)  # type: ignore[valid-type]
    except ValidationError as error:
        raise invalid(error, root=()) from None


def parse_data(data: object, data_type: type[D]) -> D:
    """Check ``data`` that was parsed already.

    Raises:
        InvalidRequest: It is not what ``data_type`` describes.
    """
    try:
        return data_type.model_validate(data)
    except ValidationError as error:
        raise invalid(error, root=("data",)) from None


def invalid(error: ValidationError, *, root: tuple[str, ...]) -> InvalidRequest:
    """Return the first finding of ``error`` as one sentence with the field's path."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    more = error.error_count() - 1
    message = first["msg"] + (f" (and {more} more)" if more else "")
    return InvalidRequest(message, param=path((*root, *first["loc"])))


def path(location: Sequence[str | int]) -> str:
    """Return a location as people write it: ``("data", "texts", 3)`` is ``data.texts[3]``, nothing is ``body``."""
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.lstrip(".") or "body"
