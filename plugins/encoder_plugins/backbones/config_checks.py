"""Configuration switches that change a result: honoured, or refused by name at load."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


class SwitchError(ValueError):
    """A checkpoint's configuration asks for something that the encoder does not do."""


def require(config: Any, name: str, accepted: Collection[Any], *, default: Any = None) -> Any:
    """Return ``config``'s value for ``name``, which must be one of ``accepted``.

    Raises:
        SwitchError: It is another one.
    """
    value = getattr(config, name, default)
    if value not in accepted:
        choices = ", ".join(repr(choice) for choice in accepted)
        raise SwitchError(f"{config.model_type}: {name}={value!r} is not supported; accepted: {choices}")
    return value


def refuse(config: Any, name: str, reason: str) -> SwitchError:
    """Return the error for ``config``'s value of ``name``."""
    return SwitchError(f"{config.model_type}: {name}={getattr(config, name, None)!r} is not supported: {reason}")
