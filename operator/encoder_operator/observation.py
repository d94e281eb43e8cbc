"""Reads all that one decision rests on, live, and parses it. Decides nothing.

Lists and gets go to the API server each time: its answer is never older than our last write, so nothing must be remembered.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from encoder_operator import facts, names
from encoder_operator.canonical import Json
from encoder_operator.cluster import Cluster
from encoder_operator.facts import Facts, Pod, Revision

_CREATING = "ContainerCreating"


async def observe(cluster: Cluster, namespace: str, live: Json) -> Facts:
    """Return the facts about an EncoderModel."""
    name, uid = live["metadata"]["name"], live["metadata"]["uid"]
    labels = {names.MODEL: name}
    claim_name = live.get("spec", {}).get("storage", {}).get("claimName") or names.artifacts_claim(name)
    jobs, pods, records, deployment, service, claim = await asyncio.gather(
        cluster.list("Job", namespace, labels),
        cluster.list("Pod", namespace, labels),
        cluster.list("ControllerRevision", namespace, labels),
        cluster.get("Deployment", namespace, name),
        cluster.get("Service", namespace, name),
        cluster.get("PersistentVolumeClaim", namespace, claim_name),
    )
    children = [*jobs, *records, *(found for found in (deployment, service) if found)]
    conflicts = [found for found in (deployment, service) if found and not _ours(found, name)]
    if claim and claim_name == names.artifacts_claim(name) and not _ours(claim, name):
        conflicts.append(claim)
    parsed = await _with_mount_problems(cluster, namespace, [facts.pod(pod) for pod in pods], pods)
    revisions = sorted(
        (facts.revision(record) for record in _of(records, "revision")), key=lambda found: (found.number, found.hash)
    )
    serving = {pod["metadata"]["uid"] for pod in _of(pods, "serving")}
    return Facts(
        now=datetime.now(UTC),
        claim=facts.claim(claim) if claim and "deletionTimestamp" not in claim["metadata"] else None,
        deployment=facts.deployment(deployment) if deployment else None,
        service=service,
        prep_jobs=tuple(facts.job(job, parsed) for job in _of(jobs, "prep")),
        parity_jobs=tuple(facts.job(job, parsed) for job in _of(jobs, "parity")),
        revisions=tuple(revisions),
        verdicts=tuple(facts.verdict(record) for record in _of(records, "verdict")),
        pods=await _with_products(cluster, (pod for pod in parsed if pod.uid in serving), revisions),
        leftovers=tuple(_called(child) for child in children if _of_another(child, uid)),
        conflicts=tuple(_called(found) for found in conflicts),
        live_revisions={record["metadata"]["labels"][names.REVISION]: record for record in _of(records, "revision")},
        inputs=await _inputs(cluster, namespace, live),
    )


async def _inputs(cluster: Cluster, namespace: str, live: Json) -> str | None:
    """Return the hash of the user's own cases; empty where there are none, None where they can't be found."""
    wanted = live.get("spec", {}).get("parity", {}).get("inputs", {}).get("configMapRef")
    if wanted is None:
        return ""
    found = await cluster.get("ConfigMap", namespace, wanted["name"])
    content = (found or {}).get("data", {}).get(wanted.get("key", "inputs.json"))
    return None if content is None else hashlib.sha256(content.encode()).hexdigest()


def _of(found: Iterable[Json], component: str) -> list[Json]:
    return [entry for entry in found if entry["metadata"].get("labels", {}).get(names.COMPONENT) == component]


def _ours(live: Json, model: str) -> bool:
    labels = live["metadata"].get("labels", {})
    return bool(labels.get(names.MODEL) == model and labels.get(names.MANAGED_BY) == names.MANAGER)


def _of_another(live: Json, uid: str) -> bool:
    owners = live["metadata"].get("ownerReferences", [])
    return any(owner["kind"] == names.KIND and owner["uid"] != uid for owner in owners)


def _called(live: Json) -> str:
    # lists leave the kind out of their entries
    return f"{live.get('kind', 'object')} {live['metadata']['name']}"


async def _with_products(cluster: Cluster, pods: Iterable[Pod], revisions: list[Revision]) -> tuple[Pod, ...]:
    """Add the accelerator product that each pod runs on."""
    accelerators = {found.hash: found.pinned["accelerator"] for found in revisions}
    products: dict[str, str] = {}
    found = []
    for pod in pods:
        if accelerators.get(pod.revision) == "cpu":
            found.append(replace(pod, product="cpu"))
        elif pod.node:
            if pod.node not in products:
                products[pod.node] = await _product(cluster, pod.node)
            found.append(replace(pod, product=products[pod.node]))
        else:
            found.append(pod)
    return tuple(found)


async def _product(cluster: Cluster, node: str) -> str:
    live = await cluster.get("Node", None, node)
    label = live["metadata"].get("labels", {}).get(names.GPU_PRODUCT_LABEL) if live else None
    # without the label nothing says that two nodes have the same product: each is verified by itself
    return label or f"node:{node}"


async def _with_mount_problems(cluster: Cluster, namespace: str, pods: list[Pod], live: list[Json]) -> list[Pod]:
    """Ask for the Events of prep pods that are being created: only there the kubelet says which mount it waits for."""
    prep = {pod["metadata"]["uid"] for pod in _of(live, "prep")}
    found = []
    for pod in pods:
        if pod.uid in prep and pod.phase == "Pending" and pod.node and pod.waiting == _CREATING:
            events = await cluster.list(
                "Event", namespace, {}, {"involvedObject.uid": pod.uid, "reason": "FailedMount"}
            )
            last = max(events, key=lambda event: event.get("lastTimestamp") or "", default=None)
            pod = replace(pod, mount_problem=last.get("message", "") if last else "")
        found.append(pod)
    return found
