"""Canonical JSON and hashes of it, for every key, revision hash and pinned input."""

from __future__ import annotations

import hashlib
import json
from typing import Any, TypeAlias

# manifests as the API server represents them; typed values are in api and state
Json: TypeAlias = dict[str, Any]


def canonical_json(value: Any) -> str:
    """Return the canonical JSON text of `value`: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def json_digest(value: Any) -> str:
    """Return the sha256 of the canonical JSON text as 64 hexadecimal digits."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
