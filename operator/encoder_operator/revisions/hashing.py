"""One spelling of a JSON value, and digests of it. Every key, hash and pinned input goes through here."""

from __future__ import annotations

import hashlib
import json
from typing import Any, TypeAlias

# the API server's language; typed values exist on our side of api/ and facts.py only
Json: TypeAlias = dict[str, Any]


def canonical_json(value: Any) -> str:
    """Return the one spelling of ``value``: sorted keys, no blanks, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def json_digest(value: Any) -> str:
    """Return the sha256 of the canonical spelling, as 64 hex digits."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
