"""Parse Kubernetes quantities such as `500m` and `1Gi`."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    **{letter: Decimal(1000) ** (i + 1) for i, letter in enumerate("kMGTPE")},
    **{letter + "i": Decimal(1024) ** (i + 1) for i, letter in enumerate("KMGTPE")},
}
_SUFFIX_CHARACTERS = "".join(sorted({letter for suffix in _SUFFIXES for letter in suffix}))


def parse_quantity(value: Any) -> Any:
    """Return a quantity as a number, so that `1Gi` equals `1024Mi`. Text that is not a quantity is returned unchanged."""
    text = str(value)
    head = text.rstrip(_SUFFIX_CHARACTERS)
    try:
        found = Decimal(head) * _SUFFIXES[text[len(head) :]]
    except (InvalidOperation, KeyError):
        return text
    return found if found.is_finite() else text
