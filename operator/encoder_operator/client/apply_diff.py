"""Decide whether a server-side apply would change a live object.

The API server records in `managedFields` which fields each manager has applied. Extracting exactly the operator's
fields from the live object and comparing them with the manifest finds every change that an apply would make: a field
that is no longer wanted, one that another manager has taken over, and one that is missing. Fields of other managers are
ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from encoder_operator import naming
from encoder_operator.api.v1alpha1.quantity import parse_quantity
from encoder_operator.revisions.hashing import Json

# the API server normalizes quantities: maps of them, and single ones
_QUANTITY_MAPS = frozenset({"requests", "limits"})
_QUANTITIES = frozenset({"sizeLimit"})
# fields of the spec that the API server omits, or sets itself, if they have their default, by kind: their values are compared,
# whoever owns them
_DEFAULTS: dict[str, Json] = {
    "Deployment": {"paused": False},
    "Service": {"publishNotReadyAddresses": False, "type": "ClusterIP"},
}
# a restart by `kubectl rollout restart`, and the number of replicas, which the next apply takes back
_HARMLESS = frozenset({"spec.replicas", "spec.template.metadata.annotations"})


def is_up_to_date(manifest: Json, live: Json | None) -> bool:
    """Return whether applying `manifest` would change nothing."""
    if live is None:
        return False
    fields = owned_fields(live)
    if fields is None:
        return False
    defaults = _DEFAULTS.get(manifest["kind"], {})
    spec, live_spec = manifest.get("spec", {}), live.get("spec", {})
    if any(live_spec.get(name, default) != spec.get(name, default) for name, default in defaults.items()):
        return False
    # name and namespace are not owned by any manager
    ours = {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind", "metadata")}
    metadata = {key: value for key, value in manifest["metadata"].items() if key not in ("name", "namespace")}
    ours["metadata"] = metadata
    owned = extract_owned(live, fields, ours)
    for side in (ours, owned):
        if defaults and "spec" in side:
            side["spec"] = {key: value for key, value in side["spec"].items() if key not in defaults}
    return bool(_normalize(owned) == _normalize(ours))


def foreign_fields(manifest: Json, live: Json) -> tuple[str, ...]:
    """Return the paths of the fields in the spec of a live object that others have set and that `manifest` does not set."""
    found: set[str] = set()
    for entry in live["metadata"].get("managedFields", []):
        if entry.get("manager") != naming.MANAGER and not entry.get("subresource"):
            found.update(_foreign_paths(entry.get("fieldsV1", {}).get("f:spec", {}), manifest["spec"], "spec"))
    return tuple(sorted(found))


def _foreign_paths(fields: Json, ours: Any, path: str) -> Iterator[str]:
    entries, named = _Entries(ours), ours if isinstance(ours, dict) else {}
    for key, below in fields.items():
        if key == ".":
            continue
        here = f"{path}{_path_element(key)}"
        if here in _HARMLESS:
            continue
        name = key[2:]
        found = [named[name]] if key.startswith("f:") and name in named else entries.find(key)
        if found:
            yield from _foreign_paths(below, found[0], here)
        else:
            yield here


def _path_element(key: str) -> str:
    """Return a key of `managedFields` as an element of a path: `.name`, or `[name]` for the item of a list."""
    kind, _, text = key.partition(":")
    if kind == "f":
        return f".{text}"
    value = json.loads(text)
    return f"[{','.join(str(part) for part in value.values()) if isinstance(value, dict) else value}]"


def owned_fields(live: Json) -> Json | None:
    """Return the fields that the operator has applied to `live`, or None if it has never applied any."""
    for entry in live["metadata"].get("managedFields", []):
        if (
            entry.get("manager") == naming.MANAGER
            and entry.get("operation") == "Apply"
            and not entry.get("subresource")
        ):
            fields: Json = entry.get("fieldsV1", {})
            return fields
    return None


def extract_owned(value: Any, fields: Json, wanted: Any = None) -> Any:
    """Return the part of a value that a set of fields, in the notation of `managedFields`, covers.

    The API server omits many fields that are 0, False or an empty map (`readOnly`, `annotations`), but records who has
    applied them: those are taken from `wanted`, the value that was applied.
    """
    inner = {key: below for key, below in fields.items() if key != "."}
    if not inner:
        return value
    if isinstance(value, dict):
        names_ = [(key[2:], below) for key, below in inner.items() if key.startswith("f:")]
        applied = wanted if isinstance(wanted, dict) else {}
        omitted = {
            name: zero for name, _ in names_ if name not in value and (zero := applied.get(name)) in (0, False, {})
        }
        return omitted | {
            name: extract_owned(value[name], below, applied.get(name)) for name, below in names_ if name in value
        }
    if isinstance(value, list):
        here, there = _Entries(value), _Entries(wanted)
        return [
            extract_owned(entry, below, next(iter(there.find(key)), None))
            for key, below in inner.items()
            for entry in here.find(key)
        ]
    return value


class _Entries:
    """The entries of a list by their keys in `managedFields`, found in constant time: a list may have thousands.

    Args:
        value: The list; anything else has no entries.
    """

    def __init__(self, value: Any) -> None:
        self._entries: list[Any] = value if isinstance(value, list) else []
        # by the names of the keys; without names, the entries are their own keys
        self._indexes: dict[tuple[str, ...], dict[str, list[Any]]] = {}

    def find(self, key: str) -> list[Any]:
        """Return the entries that a key such as `k:{"name":"a"}` or `v:"a"` is about."""
        kind, _, text = key.partition(":")
        if not self._entries or kind not in ("k", "v"):
            return []
        wanted = json.loads(text)
        names = tuple(sorted(wanted)) if kind == "k" else ()
        if names not in self._indexes:
            index = self._indexes[names] = dict[str, list[Any]]()
            for entry in self._entries:
                if not names or isinstance(entry, dict):
                    index.setdefault(_key_text(entry, names), []).append(entry)
        return self._indexes[names].get(_key_text(wanted, names), [])


def _key_text(entry: Any, names: tuple[str, ...]) -> str:
    return _sort_key([entry.get(name) for name in names] if names else entry)


def _normalize(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        if name in _QUANTITY_MAPS:
            return {key: parse_quantity(entry) for key, entry in value.items()}
        found = {key: _normalize(entry, key) for key, entry in value.items()}
        # the API server drops empty values
        return {key: entry for key, entry in found.items() if entry not in ("", [])}
    if isinstance(value, list):
        return sorted((_normalize(entry) for entry in value), key=_sort_key) if _is_list_of_maps(value) else value
    return parse_quantity(value) if name in _QUANTITIES else value


def _is_list_of_maps(value: list[Any]) -> bool:
    """Return whether a list holds objects. Such lists are maps with a key, so their order is not significant."""
    return all(isinstance(entry, dict) for entry in value)


def _sort_key(entry: Any) -> str:
    return json.dumps(entry, sort_keys=True, default=str)
