"""Which fields of a live object are ours, and whether they are as we want them.

Server-side apply keeps, for each manager, the set of fields that it applied (``managedFields``). Taking exactly those out of the
live object and comparing them with the manifest finds every difference that an apply would change, in either direction: a field
that we no longer want, one that someone else took over, one that is missing. Fields of others are never looked at.
"""

from __future__ import annotations

import json
from typing import Any

from encoder_operator import naming
from encoder_operator.api.v1alpha1.quantity import parse_quantity
from encoder_operator.revisions.hashing import Json

# maps of quantities, and single ones: the API server spells these its own way
_QUANTITY_MAPS = frozenset({"requests", "limits"})
_QUANTITIES = frozenset({"sizeLimit"})


def is_up_to_date(manifest: Json, live: Json | None) -> bool:
    """Return whether applying ``manifest`` would change nothing."""
    if live is None:
        return False
    fields = owned_fields(live)
    if fields is None:
        return False
    # identity is not a field that anybody owns
    ours = {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind", "metadata")}
    metadata = {key: value for key, value in manifest["metadata"].items() if key not in ("name", "namespace")}
    ours["metadata"] = metadata
    return bool(_normalize(extract_owned(live, fields)) == _normalize(ours))


def owned_fields(live: Json) -> Json | None:
    """Return the fields that our manager has applied to ``live``, or None if it never has."""
    for entry in live["metadata"].get("managedFields", []):
        if (
            entry.get("manager") == naming.MANAGER
            and entry.get("operation") == "Apply"
            and not entry.get("subresource")
        ):
            fields: Json = entry.get("fieldsV1", {})
            return fields
    return None


def extract_owned(value: Any, fields: Json) -> Any:
    """Return what of a value is in a set of fields, as ``managedFields`` spells one."""
    inner = {key: below for key, below in fields.items() if key != "."}
    if not inner:
        return value
    if isinstance(value, dict):
        names_ = [(key[2:], below) for key, below in inner.items() if key.startswith("f:")]
        return {name: extract_owned(value[name], below) for name, below in names_ if name in value}
    if isinstance(value, list):
        keyed = [(key[0], json.loads(key[2:]), below) for key, below in inner.items()]
        return [
            extract_owned(entry, below)
            for kind, wanted, below in keyed
            for entry in value
            if _is_list_entry(entry, kind, wanted)
        ]
    return value


def _is_list_entry(entry: Any, kind: str, wanted: Any) -> bool:
    if kind == "k" and isinstance(entry, dict):
        return all(entry.get(name) == value for name, value in wanted.items())
    return bool(kind == "v" and entry == wanted)


def _normalize(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        if name in _QUANTITY_MAPS:
            return {key: parse_quantity(entry) for key, entry in value.items()}
        found = {key: _normalize(entry, key) for key, entry in value.items()}
        # the API server leaves out what is empty
        return {key: entry for key, entry in found.items() if entry not in ("", [])}
    if isinstance(value, list):
        return sorted((_normalize(entry) for entry in value), key=_sort_key) if _is_list_of_maps(value) else value
    return parse_quantity(value) if name in _QUANTITIES else value


def _is_list_of_maps(value: list[Any]) -> bool:
    """Lists of objects are maps by some key: their order says nothing that we rely on."""
    return all(isinstance(entry, dict) for entry in value)


def _sort_key(entry: Any) -> str:
    return json.dumps(entry, sort_keys=True, default=str)
