"""Which objects are children of an EncoderModel: by their controller, not by labels alone.

Labels can be written by everyone who may create an object. A child is therefore accepted only if its controller reference, over
every object in between, ends at the uid of the EncoderModel: Deployment to ReplicaSet to serving pod, Job to prep or parity pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from encoder_operator import naming
from encoder_operator.revisions.hashing import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Children:
    """The Jobs, pods and ControllerRevisions that the operator accepts as children of one EncoderModel."""

    jobs: list[Json]
    pods: list[Json]
    records: list[Json]


def controller(live: Json) -> Json:
    """Return the owner reference of the object's controller, or an empty one."""
    owners = live["metadata"].get("ownerReferences", [])
    return next((owner for owner in owners if owner.get("controller") is True), {})


def controlled(live: Json, kind: str, uids: set[str]) -> bool:
    """Return whether the object's controller is of ``kind`` and has one of ``uids``."""
    found = controller(live)
    return found.get("kind") == kind and found.get("uid") in uids


def of_model(live: Json, uid: str) -> bool:
    """Return whether the EncoderModel with ``uid`` is the object's controller."""
    found = controller(live)
    return found.get("apiVersion", "").startswith(f"{naming.GROUP}/") and controlled(live, naming.KIND, {uid})


def of_namesake(live: Json, name: str, uid: str) -> bool:
    """Return whether the object's controller is an EncoderModel that had the same name before, and so another uid."""
    found = controller(live)
    return found.get("kind") == naming.KIND and found.get("name") == name and found.get("uid") != uid


def belongs_to(live: Json, name: str, uid: str) -> bool:
    """Return whether the object with the name of a child is that child: it has the operator's labels or, if another client has changed those, its owner."""
    labels = live["metadata"].get("labels", {})
    labelled = labels.get(naming.MODEL) == name and labels.get(naming.MANAGED_BY) == naming.MANAGER
    return bool(labelled) or of_model(live, uid)


def children(found: Mapping[str, list[Json]], deployment: Json | None, uid: str) -> Children:
    """Return which of the objects with a model's label are its children.

    Args:
        found: The objects with the model's label, by their kind.
        deployment: The Deployment that has the model's name, if there is one.
        uid: The uid of the EncoderModel.
    """
    jobs = [job for job in found["Job"] if of_model(job, uid)]
    deployments = {deployment["metadata"]["uid"]} if deployment and of_model(deployment, uid) else set()
    replica_sets = _uids(rs for rs in found["ReplicaSet"] if controlled(rs, "Deployment", deployments))
    job_uids = {kind: _uids(job for job in jobs if component(job) == kind) for kind in ("prep", "parity")}
    return Children(
        jobs=jobs,
        pods=[
            pod
            for pod in found["Pod"]
            if (component(pod) == "serving" and controlled(pod, "ReplicaSet", replica_sets))
            or controlled(pod, "Job", job_uids.get(component(pod), set()))
        ],
        records=[record for record in found["ControllerRevision"] if of_model(record, uid)],
    )


def component(live: Json) -> str:
    """Return what the object's component label says it is for."""
    return str(live["metadata"].get("labels", {}).get(naming.COMPONENT, ""))


def _uids(found: Iterable[Json]) -> set[str]:
    return {entry["metadata"]["uid"] for entry in found}
