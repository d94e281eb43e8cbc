"""`encoder-operator gc`: start a Job on each PersistentVolumeClaim that deletes unreferenced artifacts. A CronJob runs this command.

An artifact is kept while any of the operator's objects in its namespace contains its key: the status of an
EncoderModel, a revision that serves or may be rolled back to, or a Job. The key may appear anywhere in the object, so
that fields of later versions count as well. An artifact that is prepared after this listing is protected by a marker
that the prep Job writes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

import structlog

from encoder_operator import naming
from encoder_operator.client.client import Client
from encoder_operator.client.errors import ApiServerError
from encoder_operator.manager.settings import Settings
from encoder_operator.resources import garbage_collection_job
from encoder_operator.resources.garbage_collection_job import CollectionTarget
from encoder_operator.revisions.hashing import Json, canonical_json, json_digest

_LOG = structlog.get_logger()
_KEY = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_REFERENCING_KINDS = ("ControllerRevision", "Deployment", "Job")


def collection_targets(models: Iterable[Json], others: Iterable[Json]) -> list[CollectionTarget]:
    """Return the PersistentVolumeClaims to collect on.

    A PVC without an EncoderModel is skipped, because its artifacts may have been kept on purpose. A PVC on which
    nothing was prepared is skipped too: it may have no volume yet, and the first pod that mounts it would decide the
    volume's location.

    Args:
        models: All EncoderModels.
        others: All other objects of the operator.
    """
    models, others = list(models), list(others)
    referenced: defaultdict[str, set[str]] = defaultdict(set)
    # the list of keys in an earlier garbage collection Job is out of date
    for found in (*models, *(found for found in others if not _is_collection_job(found))):
        referenced[found["metadata"]["namespace"]].update(_KEY.findall(canonical_json(found)))
    existing = {(found["metadata"]["namespace"], found["metadata"]["name"]) for found in models}
    used: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for found in others:
        meta = found["metadata"]
        model = meta.get("labels", {}).get(naming.MODEL, "")
        claim = ((found.get("data") or {}).get("pinned") or {}).get("claim")
        if claim and (meta["namespace"], model) in existing:
            used[meta["namespace"], claim].add(model)
    return [
        CollectionTarget(
            namespace=namespace, name=name, models=tuple(sorted(found)), keep=tuple(sorted(referenced[namespace]))
        )
        for (namespace, name), found in sorted(used.items())
    ]


async def run(client: Client, settings: Settings, now: datetime) -> int:
    """Start the Jobs.

    Returns:
        The exit code: 1 if a Job could not be created.
    """
    models: list[Json] = []
    others: list[Json] = []
    for namespace in settings.namespaces or ["*"]:
        models += await client.list(naming.KIND, namespace, {})
        for kind in _REFERENCING_KINDS:
            others += await client.list(kind, namespace, {naming.MANAGED_BY: naming.MANAGER})
    running = {_target_of(found) for found in others if _is_running(found)}
    failed = False
    for claim in collection_targets(models, others):
        log = _LOG.bind(namespace=claim.namespace, claim=claim.name)
        if (claim.namespace, json_digest(claim.name)[:16]) in running:
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


def _is_running(found: Json) -> bool:
    if not _is_collection_job(found):
        return False
    conditions = (found.get("status") or {}).get("conditions") or []
    return not any(entry["type"] in ("Complete", "Failed") and entry["status"] == "True" for entry in conditions)


def _is_collection_job(found: Json) -> bool:
    component: str = found["metadata"].get("labels", {}).get(naming.COMPONENT, "")
    return component == "gc"
