"""`encoder-operator render`: build the objects for a manifest without a cluster, for reviews, golden files and support."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass, replace
from typing import Any

from encoder_operator.manager.settings import Images, Settings
from encoder_operator.resources import (
    controller_revisions,
    deployment,
    http_route,
    network_policy,
    parity_job,
    persistent_volume_claim,
    pod_disruption_budget,
    prep_job,
    service,
    serving_pod_template,
)
from encoder_operator.revisions import revision
from encoder_operator.revisions.hashing import Json
from encoder_operator.revisions.revision import Artifact
from encoder_operator.state import desired
from encoder_operator.state.observed import Pod
from encoder_operator.validation import checks
from encoder_plugins import catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """Facts that are otherwise read from the cluster.

    Attributes:
        digest: Digest of the artifact, which the prep Job reports.
        reference: Digest of the artifact's reference outputs, which the prep Job reports.
        inputs: sha256 of the cases that spec.parity.inputs names.
        one_node: Whether the PersistentVolumeClaim that the spec names is ReadWriteOnce.
    """

    digest: str = "sha256:" + "0" * 64
    reference: str = "sha256:" + "0" * 64
    inputs: str = "0" * 64
    one_node: bool = False


def render_children(live: Json, settings: Settings, known: ClusterFacts | None = None) -> list[Json]:
    """Return every child of an EncoderModel, in the order in which the operator creates them.

    Args:
        live: The EncoderModel's manifest; namespace and uid may be missing.
        settings: The operator's settings; without images, the chart's defaults are used.
        known: Facts that are otherwise read from the cluster.

    Raises:
        NotAccepted: The operator would not accept the spec.
    """
    known = known or ClusterFacts()
    live = _without_nulls(live)
    settings = settings if settings.images.operator else settings.model_copy(update={"images": default_images()})
    meta = {"namespace": "default", "uid": "00000000-0000-0000-0000-000000000000"} | live["metadata"]
    checks.check_name(meta["name"])
    cases = known.inputs if "inputs" in (live["spec"].get("parity") or {}) else ""
    found = desired.parse_model(live | {"metadata": meta}, settings, cases)
    create = found.spec.storage.create
    shared = found.has_shared_volume(None) or (create is None and not known.one_node)
    if not shared:
        checks.check_single_node(found.spec, found.name, found.namespace)
    artifact = Artifact(
        key=revision.artifact_key(found), digest=known.digest, reference=known.reference, revision="", bytes=0
    )
    origin = revision.unresolved_source(found)
    made = replace(
        revision.build(found, artifact, shared=shared, settings=settings),
        number=1,
        update=found.update,
        unresolved_source=origin,
        retry=found.retry if origin else "",
    )
    whole = [
        persistent_volume_claim.build(found, create, None, storage_class=settings.defaults.storage_class_name)
        if create is not None
        else None,
        prep_job.build(found, artifact.key, shared=shared, settings=settings),
        controller_revisions.build_revision(found, made),
        service.build(found),
        network_policy.build(found),
        http_route.build(found),
        deployment.build(found, made, 0 if found.spec.suspend else found.spec.serving.replicas),
        pod_disruption_budget.build(found, shared=shared),
        parity_job.build(found, made, _placeholder_pod(made.hash), attempt=1, shared=shared, settings=settings),
    ]
    return [manifest for manifest in whole if manifest is not None]


def _without_nulls(value: Any) -> Any:
    """Return an object without the fields that are null, which the API server drops; a pod template override keeps its own."""
    if isinstance(value, list):
        return [_without_nulls(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    return {
        name: entry if name == "podTemplate" else _without_nulls(entry)
        for name, entry in value.items()
        if entry is not None
    }


def default_images() -> Images:
    """Return the chart's default images, for an environment without the chart's settings."""
    version = importlib.metadata.version("encoder-operator")

    def tagged(suffix: str) -> dict[str, str]:
        return {name: f"encoder-operator/engine-{name}:{version}-{suffix}" for name in catalog.plugins()}

    return Images(
        operator=f"encoder-operator/operator:{version}",
        engine={"cpu": tagged("cpu"), "nvidia": tagged("cuda")},
        prep={name: f"encoder-operator/prep-{name}:{version}" for name in catalog.plugins()},
    )


def _placeholder_pod(revision_hash: str) -> Pod:
    """Return a placeholder for the pod that the parity Job verifies."""
    return Pod(
        name="pod",
        uid="00000000-0000-0000-0000-000000000001",
        revision=revision_hash,
        job="",
        created=serving_pod_template.EPOCH,
        deleting=False,
        phase="Running",
        reason="",
        node="node",
        ip="192.0.2.1",
        ready=False,
        containers_ready=True,
        gate=None,
        containers={"engine": "containerd://0"},
        image_id="sha256:0",
        terminated=None,
        last_terminated=None,
        waiting_reason="",
        waiting_message="",
        unschedulable="",
        product="cpu",
    )
