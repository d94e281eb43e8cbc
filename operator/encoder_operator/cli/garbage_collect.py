"""`encoder-operator gc`: start a Job on each PersistentVolumeClaim that deletes unreferenced artifacts. A CronJob runs this command.

An artifact is kept while any of the operator's objects in its namespace contains its key: the status of an
EncoderModel, a revision that serves or may be rolled back to, or a Job. The key may appear anywhere in the object, so
that fields of later versions count as well. An artifact that is prepared after this listing is protected by a marker
that the prep Job writes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime

import structlog

from encoder_operator import naming
from encoder_operator.client.client import Client
from encoder_operator.client.errors import ApiServerError
from encoder_operator.controller.namespaces import served_namespaces
from encoder_operator.manager.settings import Settings
from encoder_operator.resources import garbage_collection_job
from encoder_operator.resources.garbage_collection_job import CollectionTarget
from encoder_operator.revisions.hashing import Json, canonical_json, json_digest

_LOG = structlog.get_logger()
_KEY = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_REFERENCING_KINDS = ("ControllerRevision", "Deployment", "Job")


class References:
    """What the operator's objects refer to. Only keys and names are kept, so memory does not grow with the objects' size."""

    def __init__(self) -> None:
        self._models: set[tuple[str, str]] = set()
        self._keys: defaultdict[str, set[str]] = defaultdict(set)
        # EncoderModels by namespace and PersistentVolumeClaim
        self._claims: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._running: set[tuple[str, str]] = set()

    def add_model(self, live: Json) -> None:
        """Add an EncoderModel. Adding an object twice is the same as adding it once."""
        self._models.add((live["metadata"]["namespace"], live["metadata"]["name"]))
        self._add_keys(live)

    def add_other(self, live: Json) -> None:
        """Add another object of the operator."""
        if _is_collection_job(live):
            # the list of keys in an earlier garbage collection Job is out of date
            if _is_unfinished(live):
                self._running.add(_target_of(live))
            return
        self._add_keys(live)
        meta = live["metadata"]
        claim = ((live.get("data") or {}).get("pinned") or {}).get("claim")
        if claim:
            self._claims[meta["namespace"], claim].add(meta.get("labels", {}).get(naming.MODEL, ""))

    def targets(self) -> list[CollectionTarget]:
        """Return the PersistentVolumeClaims to collect on.

        A PVC without an EncoderModel is skipped, because its artifacts may have been kept on purpose. A PVC on which
        nothing was prepared is skipped too: it may have no volume yet, and the first pod that mounts it would decide the
        volume's location.
        """
        found = []
        for (namespace, name), users in sorted(self._claims.items()):
            models = tuple(sorted(model for model in users if (namespace, model) in self._models))
            if models:
                keep = tuple(sorted(self._keys[namespace]))
                found.append(CollectionTarget(namespace=namespace, name=name, models=models, keep=keep))
        return found

    def is_running(self, target: CollectionTarget) -> bool:
        """Return whether an earlier Job still collects on the PersistentVolumeClaim."""
        return (target.namespace, json_digest(target.name)[:16]) in self._running

    def _add_keys(self, live: Json) -> None:
        self._keys[live["metadata"]["namespace"]].update(_KEY.findall(canonical_json(live)))


async def run(client: Client, settings: Settings, now: datetime) -> int:
    """Start the Jobs.

    Returns:
        The exit code: 1 if a Job could not be created.
    """
    references, namespaces = References(), served_namespaces(client, settings)
    await namespaces.refresh()

    def of_served(consume: Callable[[Json], None]) -> Callable[[Json], None]:
        return lambda live: consume(live) if namespaces.serves(live["metadata"]["namespace"]) else None

    for namespace in settings.namespaces or ["*"]:
        await client.for_each(naming.KIND, namespace, {}, of_served(references.add_model))
        for kind in _REFERENCING_KINDS:
            labels = {naming.MANAGED_BY: naming.MANAGER}
            await client.for_each(kind, namespace, labels, of_served(references.add_other))
    failed = False
    for claim in references.targets():
        log = _LOG.bind(namespace=claim.namespace, claim=claim.name)
        if references.is_running(claim):
            log.info("gc", result="the previous Job is still running")
            continue
        try:
            await client.apply(garbage_collection_job.build(claim, now, settings))
        except ApiServerError as error:
            if error.status == 403 and "is being terminated" in str(error):
                # the artifacts go with the namespace
                log.info("gc", result="the namespace is being deleted")
                continue
            # a failure on one PVC does not affect the others
            log.warning("gc", result=str(error))
            failed = True
        else:
            log.info("gc", result="started", keep=len(claim.keep))
    return 1 if failed else 0


def _target_of(job: Json) -> tuple[str, str]:
    return job["metadata"]["namespace"], job["metadata"]["labels"].get(naming.CLAIM, "")


def _is_unfinished(found: Json) -> bool:
    conditions = (found.get("status") or {}).get("conditions") or []
    return not any(entry["type"] in ("Complete", "Failed") and entry["status"] == "True" for entry in conditions)


def _is_collection_job(found: Json) -> bool:
    component: str = found["metadata"].get("labels", {}).get(naming.COMPONENT, "")
    return component == "gc"
