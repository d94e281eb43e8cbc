"""Plan the readiness gates of pods: a gate opens when the revision has passed on the pod's platform, and stays open until that changes."""

from __future__ import annotations

from encoder_operator.planner.actions import SetGate
from encoder_operator.planner.verification import (
    ParityPolicy,
    VerificationState,
    latest_verdict_under,
    may_serve_under,
    opened_on,
    parity_policy,
    platform_of,
    state_under,
    verdict_message,
)
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import GateCondition, ObservedState, Pod
from encoder_operator.status.reasons import Reason


def gates_to_set(model: EncoderModel, observed: ObservedState) -> tuple[SetGate, ...]:
    """Return the gates to change."""
    found = []
    for pod in observed.pods:
        wanted = _gate(parity_policy(model), observed, pod)
        if not pod.deleting and wanted is not None and wanted != pod.gate:
            found.append(SetGate(pod.name, pod.uid, wanted))
    return tuple(found)


def gates_to_open(policy: ParityPolicy, observed: ObservedState) -> tuple[SetGate, ...]:
    """Return the gates to open while nothing else is done, so that pods of verified revisions keep receiving traffic."""
    shut = [pod for pod in observed.pods if not pod.deleting and not (pod.gate and pod.gate.open)]
    wanted = [(pod, _gate(policy, observed, pod)) for pod in shut]
    return tuple(SetGate(pod.name, pod.uid, gate) for pod, gate in wanted if gate is not None and gate.open)


def _gate(policy: ParityPolicy, observed: ObservedState, pod: Pod) -> GateCondition | None:
    """Return the gate that a pod should have, or None to set none: a missing condition already counts as False."""
    platform, recorded = platform_of(pod), pod.gate.platform if pod.gate else None
    if policy.mode == "Disabled":
        return GateCondition(
            open=True,
            reason=Reason.DISABLED,
            message="spec.parity.mode is Disabled",
            # a pod may have a node or a container only later
            platform=platform if all(platform) else recorded,
        )
    state = state_under(policy, observed, pod.revision, platform) if pod.product else VerificationState.NONE
    if state is VerificationState.SERVING and opened_on(pod):
        message = "Serves traffic until its parity check has finished"
        return GateCondition(open=True, reason=Reason.NOT_VERIFIED, message=message, platform=platform)
    if state in (VerificationState.NONE, VerificationState.SERVING):
        message = "Not yet verified on this accelerator"
        closed = GateCondition(open=False, reason=Reason.NOT_VERIFIED, message=message, platform=recorded)
        return closed if pod.gate is not None else None
    verdict = latest_verdict_under(
        policy, tuple(found for found in observed.verdicts if platform_of(found) == platform), pod.revision
    )
    message = verdict_message(verdict) if verdict else ""
    if state is VerificationState.FAILED:
        opens = may_serve_under(policy, state)
        return GateCondition(
            open=opens, reason=Reason.PARITY_FAILED, message=message, platform=platform if opens else recorded
        )
    return GateCondition(open=True, reason=Reason.PARITY_PASSED, message=message, platform=platform)
