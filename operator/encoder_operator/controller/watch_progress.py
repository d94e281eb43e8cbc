"""Track which resource versions the watches have delivered and the reconciles have read.

An event that is not newer than what a reconcile of its model has already read needs no further reconcile; after a
start, or after a write of the operator's own, that is true of most events. A watch that delivers nothing is not
detected here: Kopf reconnects it (`inactivity_timeout` in `watches.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from encoder_operator import naming
from encoder_operator.naming import NamespacedName
from encoder_operator.state.observed import parse_version

WATCHED_KINDS = (naming.KIND, "Pod", "Service", "Job", "Deployment")


class WatchProgress:
    """Progress of the watches and of the reconciles."""

    def __init__(self) -> None:
        self._read: dict[NamespacedName, tuple[int, ...]] = {}
        # events that arrived since the last read, which a running reconcile may or may not include
        self._unread: dict[NamespacedName, dict[str, int]] = {}

    def record_event(self, key: NamespacedName, kind: str, version: str) -> bool:
        """Record an event; return whether a reconcile is needed for it."""
        number = parse_version(version)
        read = self._read.get(key)
        if read is not None and number and number <= read[WATCHED_KINDS.index(kind)]:
            return False
        unread = self._unread.setdefault(key, {})
        unread[kind] = max(unread.get(kind, 0), number)
        return True

    def has_unread_events(self, key: NamespacedName) -> bool:
        """Return whether an event arrived that no reconcile has read."""
        return key in self._unread

    def record_read(self, key: NamespacedName, versions: Mapping[str, str]) -> None:
        """Record the version that a reconcile has read of each kind."""
        self._read[key] = tuple(parse_version(versions.get(kind, "")) for kind in WATCHED_KINDS)
        unread = self._unread.get(key)
        if unread is not None:
            remaining = {
                kind: index for kind, index in unread.items() if index > self._read[key][WATCHED_KINDS.index(kind)]
            }
            if remaining:
                self._unread[key] = remaining
            else:
                del self._unread[key]

    def record_write(self, key: NamespacedName, kind: str, version: str) -> None:
        """Record the version that a write of the operator's own has created, of an object that had not changed since it was read."""
        read = self._read.get(key)
        if read is not None and parse_version(version):
            index = WATCHED_KINDS.index(kind)
            self._read[key] = (*read[:index], max(read[index], parse_version(version)), *read[index + 1 :])

    def forget(self, key: NamespacedName) -> None:
        """Forget a model whose reconcile failed, so that its next event is not skipped."""
        self._read.pop(key, None)
        self._unread.pop(key, None)

    def forget_namespace(self, namespace: str) -> None:
        """Forget the models of a namespace that is not served any more."""
        for key in [key for key in (*self._read, *self._unread) if key.namespace == namespace]:
            self.forget(key)

    def unread_events(self, key: NamespacedName) -> Mapping[str, int]:
        """Return the newest version, by kind, of the events that no reconcile has read."""
        return dict(self._unread.get(key, {}))

    def forget_deleted(self, key: NamespacedName, before: Mapping[str, int]) -> None:
        """Forget a model that a read did not find.

        Args:
            key: The model.
            before: The unread events when the read began. Later ones may be of a new model with the same name, and stay
                unread.
        """
        self._read.pop(key, None)
        if self._unread.get(key) == before:
            del self._unread[key]

    @property
    def models(self) -> frozenset[NamespacedName]:
        """Return the models that reconciles have read and that still existed."""
        return frozenset(self._read)
