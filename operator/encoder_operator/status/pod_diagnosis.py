"""Why a pod does not run, as a reason and a sentence."""

from __future__ import annotations

from typing import NamedTuple

from encoder_operator.naming import GPU_VENDOR
from encoder_operator.state.observed import Pod
from encoder_operator.status.reasons import Reason

# a whole GPU, a slice of one, or a device by dynamic resource allocation: of ours, only those claims name devices
_NO_GPU = (f"Insufficient {GPU_VENDOR}", "cannot allocate all claims")
_PULL = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})
# a pod's reason, where the kubelet has ended it because the node needed room
EVICTED = "Evicted"


class Problem(NamedTuple):
    """A reason and a sentence."""

    reason: Reason
    message: str


def diagnose(pod: Pod) -> Problem | None:
    """Return what keeps ``pod`` from running, or None."""
    if pod.node_problem:
        return Problem(
            Reason.NODE_LOST,
            f"pod {pod.name} is on node {pod.node}, which {pod.node_problem}:"
            " another pod takes its place when Kubernetes has ended this one",
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
    if pod.reason == EVICTED:
        return eviction(pod)
    if pod.waiting_reason == "CrashLoopBackOff" or (pod.terminated and pod.terminated.exit_code):
        return _termination(pod)
    return None


def eviction(pod: Pod) -> Problem:
    """Return that the kubelet has evicted ``pod``, in its own words."""
    said = f": {pod.message}" if pod.message else ""
    return Problem(Reason.EVICTED, f"pod {pod.name} was evicted from node {pod.node}{said}")


def _termination(pod: Pod) -> Problem:
    ended = pod.terminated or pod.last_terminated
    if ended is None:
        return Problem(Reason.CRASH_LOOP, pod.waiting_message)
    if ended.reason == "OOMKilled":
        return Problem(Reason.OUT_OF_MEMORY, f"pod {pod.name} needed more memory than its limit")
    said = ended.report().get("message") or _last_line(ended.message)
    return Problem(
        Reason.CRASH_LOOP, f"pod {pod.name} ended with exit code {ended.exit_code}{': ' if said else ''}{said}"
    )


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
