"""Diagnose why a pod does not run."""

from __future__ import annotations

from typing import NamedTuple

from encoder_operator.naming import GPU_VENDOR
from encoder_operator.state.observed import Pod
from encoder_operator.status.reasons import Reason

# a whole GPU, a MIG slice, or a device by dynamic resource allocation (the operator's pods use resource claims only for
# devices)
_NO_GPU = (f"Insufficient {GPU_VENDOR}", "cannot allocate all claims")
_PULL = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        # of a runtime that only accepts signed images
        "SignatureValidationFailed",
    }
)
_NOT_CREATED = frozenset({"CreateContainerError", "RunContainerError"})
# status.reason of a pod that the kubelet has evicted
EVICTED = "Evicted"


class Problem(NamedTuple):
    """A reason and a message."""

    reason: Reason
    message: str


def diagnose(pod: Pod) -> Problem | None:
    """Return what prevents `pod` from running, or None."""
    if pod.node_problem:
        return Problem(
            Reason.NODE_LOST,
            f"Pod {pod.name} is on node {pod.node}, which {pod.node_problem};"
            " a replacement pod starts when Kubernetes has evicted this one",
        )
    if pod.unschedulable:
        return Problem(_unschedulable(pod.unschedulable), pod.unschedulable)
    if pod.waiting_reason in _PULL:
        return Problem(Reason.IMAGE_PULL_FAILED, pod.waiting_message or pod.waiting_reason)
    if pod.waiting_reason == "CreateContainerConfigError":
        reason = Reason.TOKEN_SECRET_MISSING if "secret" in pod.waiting_message.lower() else Reason.VOLUME_NOT_MOUNTED
        return Problem(reason, pod.waiting_message)
    if pod.mount_problem:
        missing = "secret" in pod.mount_problem.lower()
        return Problem(Reason.TOKEN_SECRET_MISSING if missing else Reason.VOLUME_NOT_MOUNTED, pod.mount_problem)
    if pod.creation_problem:
        return Problem(
            Reason.CRASH_LOOP, f"Pod {pod.name} cannot be created on node {pod.node}: {pod.creation_problem}"
        )
    if pod.reason == EVICTED:
        return eviction(pod)
    if pod.waiting_reason in _NOT_CREATED:
        detail = f": {pod.waiting_message}" if pod.waiting_message else ""
        which = f"its container {pod.waiting_container}" if pod.waiting_container else "its container"
        return Problem(Reason.CRASH_LOOP, f"Pod {pod.name} cannot create {which}{detail}")
    if pod.waiting_reason == "CrashLoopBackOff" or (pod.terminated and pod.terminated.exit_code):
        return _termination(pod)
    return None


def eviction(pod: Pod) -> Problem:
    """Return the problem of an evicted pod, with the kubelet's message."""
    detail = f": {pod.message}" if pod.message else ""
    return Problem(Reason.EVICTED, f"Pod {pod.name} was evicted from node {pod.node}{detail}")


def _termination(pod: Pod) -> Problem:
    other = pod.waiting_container
    ended = pod.last_terminated if other else pod.terminated or pod.last_terminated
    if ended is None:
        return Problem(Reason.CRASH_LOOP, pod.waiting_message)
    what = f"Container {other} of pod {pod.name}" if other else f"Pod {pod.name}"
    if ended.reason == "OOMKilled":
        return Problem(Reason.OUT_OF_MEMORY, f"{what} exceeded its memory limit")
    detail = ended.report().get("message") or _last_line(ended.message)
    return Problem(Reason.CRASH_LOOP, f"{what} exited with code {ended.exit_code}{': ' if detail else ''}{detail}")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][-300:] if lines else ""


def _unschedulable(message: str) -> Reason:
    if any(words in message for words in _NO_GPU):
        return Reason.INSUFFICIENT_GPU
    if "persistentvolumeclaim" in message and "not found" in message:
        return Reason.CLAIM_MISSING
    if "PersistentVolumeClaim" in message or "persistent volumes to bind" in message:
        return Reason.CLAIM_PENDING
    return Reason.UNSCHEDULABLE
