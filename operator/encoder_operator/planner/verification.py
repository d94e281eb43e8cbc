"""Plan the verification of revisions: evaluate verdicts and start parity checks.

Only one parity check per EncoderModel runs at a time. The target revision comes first, followed by the revisions that
may serve in its place, whose pods may be scheduled to platforms on which they have not been verified.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum, auto
from typing import NamedTuple

from encoder_operator import naming
from encoder_operator.manager.settings import Settings
from encoder_operator.planner.actions import Action, Apply, Delete
from encoder_operator.resources import controller_revisions, parity_job
from encoder_operator.revisions.hashing import Json, json_digest
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import (
    FIRST_POD_SECONDS,
    Job,
    ObservedState,
    Platform,
    Pod,
    Revision,
    Verdict,
    format_time,
    parse_json,
    parse_verdict,
)
from encoder_operator.status import pod_diagnosis
from encoder_operator.status.messages import parity_message
from encoder_operator.status.pod_diagnosis import Problem
from encoder_operator.status.reasons import Reason
from encoder_operator.validation import tenancy

_INITIAL_BACKOFF = 5.0
_MAX_BACKOFF = 300.0
# the attempt number must fit a label; when it wraps around, the first attempts have long been deleted
_MAX_ATTEMPT = 9999


class VerificationState(Enum):
    """Verification of a revision on a platform."""

    NONE = auto()
    PASSED = auto()
    FAILED = auto()
    # passed under thresholds that have changed since; the revision keeps serving while it is compared again
    STALE = auto()
    # no verdict counts, because parity checks were disabled or the verdict was lost, but gates are open; pods that
    # receive traffic keep it until they are compared
    SERVING = auto()


_UNVERIFIED = (VerificationState.NONE, VerificationState.SERVING)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationPlan:
    """What to do about verification, and the messages about it."""

    observed: ObservedState
    actions: tuple[Action, ...] = ()
    # the parity check of the target revision in progress, and why the last one was inconclusive
    running: str = ""
    inconclusive: str = ""
    # the same for a revision that serves instead of the target
    other: Problem | None = None
    requeue_after: float | None = None


class ParityPolicy(NamedTuple):
    """The user's settings for verification: mode, thresholds, and the retry annotation that invalidates earlier failures."""

    mode: str
    thresholds: str
    retry: str


def parity_policy(model: EncoderModel) -> ParityPolicy:
    """Return the parity policy of a model."""
    return ParityPolicy(model.spec.parity.mode, model.thresholds, model.retry)


def parity_policy_of_manifest(live: Json, settings: Settings) -> ParityPolicy:
    """Return the parity policy of an EncoderModel that was not accepted, as far as it can be read and is allowed."""
    found = live.get("spec", {}).get("parity") or {}
    annotations = live["metadata"].get("annotations", {})
    mode = tenancy.effective_mode(str(found.get("mode", "Enforce")), settings)
    thresholds = json_digest(found.get("thresholds") or {})[:10]
    return ParityPolicy(mode, thresholds, annotations.get(naming.RETRY, ""))


def verification_state(
    model: EncoderModel, observed: ObservedState, revision: str, platform: Platform
) -> VerificationState:
    """Return the verification state of `revision` on a platform."""
    return state_under(parity_policy(model), observed, revision, platform)


def state_under(policy: ParityPolicy, observed: ObservedState, revision: str, platform: Platform) -> VerificationState:
    """Return the verification state of `revision` on a platform under a parity policy."""
    found = [
        verdict
        for verdict in observed.verdicts
        if verdict.revision == revision and platform_of(verdict) == platform and _counts_under(policy, verdict)
    ]
    exact = [verdict for verdict in found if verdict.thresholds == policy.thresholds]
    if exact:
        passed = any(verdict.passed for verdict in exact)
        return VerificationState.PASSED if passed else VerificationState.FAILED
    if any(verdict.passed for verdict in found):
        return VerificationState.STALE
    if any(pod.revision == revision and opened_on(pod) == platform for pod in observed.pods):
        return VerificationState.SERVING
    return VerificationState.NONE


def opened_on(pod: Pod) -> Platform | None:
    """Return the platform on which the gate of a pod is open, or None if it is closed or the pod's image has changed since."""
    if pod.deleting or pod.gate is None or not pod.gate.open:
        return None
    platform = platform_of(pod)
    # without parity checks a gate opens before the pod has a node or a container, and may have been read in this state
    opened_early = pod.gate.reason == Reason.DISABLED and pod.gate.platform is None and all(platform)
    return platform if opened_early or pod.gate.platform == platform else None


def overall_state(model: EncoderModel, observed: ObservedState, revision: str) -> VerificationState:
    """Return the best verification state of `revision` on any platform. A revision that passed anywhere is worth keeping."""
    platforms = {platform_of(v) for v in observed.verdicts if v.revision == revision}
    platforms |= {found for pod in observed.pods if pod.revision == revision and (found := opened_on(pod))}
    states = {verification_state(model, observed, revision, platform) for platform in platforms}
    preferred = (
        VerificationState.PASSED,
        VerificationState.STALE,
        VerificationState.SERVING,
        VerificationState.FAILED,
    )
    return next((state for state in preferred if state in states), VerificationState.NONE)


def platform_of(found: Verdict | Pod) -> Platform:
    """Return the platform that a pod runs on, or that a verdict applies to."""
    return Platform(found.product, found.image if isinstance(found, Verdict) else found.image_id)


def may_serve(model: EncoderModel, found: VerificationState) -> bool:
    """Return whether pods with this verification state may receive traffic."""
    return may_serve_under(parity_policy(model), found)


def may_serve_under(policy: ParityPolicy, found: VerificationState) -> bool:
    """Return whether pods with this verification state may receive traffic under a parity policy."""
    match policy.mode:
        case "Disabled":
            return True
        case "Warn":
            return found is not VerificationState.NONE
        case _:
            return found in (VerificationState.PASSED, VerificationState.STALE, VerificationState.SERVING)


def latest_verdict(model: EncoderModel, verdicts: tuple[Verdict, ...], revision: str) -> Verdict | None:
    """Return the verdict to report for `revision`: current thresholds come first, then passes before failures, then the newest."""
    return latest_verdict_under(parity_policy(model), verdicts, revision)


def latest_verdict_under(policy: ParityPolicy, verdicts: tuple[Verdict, ...], revision: str) -> Verdict | None:
    """Return the verdict to report for `revision` under a parity policy."""
    found = [v for v in verdicts if v.revision == revision and _counts_under(policy, v)]
    return max(found, key=lambda v: (v.thresholds == policy.thresholds, v.passed, v.created, v.name), default=None)


def plan(
    model: EncoderModel, observed: ObservedState, target: Revision | None, *, settings: Settings
) -> VerificationPlan:
    """Return what to do until `target` has passed or failed, and every pod that may serve is verified on its platform."""
    compared = {found.hash: found for found in _revisions_to_verify(model, observed, target)}
    actions: list[Action] = [
        Delete("Job", job.name)
        for job in observed.parity_jobs
        if _is_obsolete(model, observed, compared.get(job.revision), job)
    ]
    gone = {action.name for action in actions if isinstance(action, Delete)}
    jobs = [job for job in observed.parity_jobs if job.revision in compared and job.name not in gone]
    for job in jobs:
        data = _accepted_verdict(model, observed, compared[job.revision], job)
        if data is None:
            continue
        platform = Platform(data["product"], data["binding"]["imageID"])
        if verification_state(model, observed, job.revision, platform) in (
            VerificationState.PASSED,
            VerificationState.FAILED,
        ):
            continue
        manifest = controller_revisions.build_verdict(model, job.revision, data)
        actions.append(Apply(manifest, None))
        # the same form that the API server will return in the next reconcile
        manifest = manifest | {"metadata": manifest["metadata"] | {"creationTimestamp": format_time(observed.now)}}
        observed = replace(observed, verdicts=(*observed.verdicts, parse_verdict(manifest)))
    found = VerificationPlan(observed=observed, actions=tuple(actions))
    if model.spec.parity.mode == "Disabled" or model.spec.suspend:
        return found
    return _plan_next(model, found, target, [job for job in jobs if _is_current(model, job)], settings=settings)


def _plan_next(
    model: EncoderModel, found: VerificationPlan, target: Revision | None, jobs: list[Job], *, settings: Settings
) -> VerificationPlan:
    """Report the parity check in progress, or start the next one."""
    observed = found.observed
    delays: list[float] = []
    due: tuple[Revision, Pod, str] | None = None
    for revision, pod in _pods_to_verify(model, observed, target):
        attempts = sorted(
            (
                job
                for job in jobs
                if job.revision == revision.hash and _is_finished(job) and _platform_of_job(job) == platform_of(pod)
            ),
            key=_attempt_order,
        )
        reason = _inconclusive_reason(observed, revision, attempts[-1]) if attempts else ""
        left = _backoff_left(observed, attempts)
        if left > 0:
            delays.append(max(left, 0.1))
            found = _with_message(found, revision, target, inconclusive=reason)
        elif due is None:
            due = revision, pod, reason
    running = next((job for job in jobs if not _is_finished(job) and not job.deleting), None)
    if running is not None:
        of = next((entry for entry in observed.revisions if entry.hash == running.revision), target)
        found = _with_message(found, of, target, running=_running_message(observed, running))
        # Events are not watched
        return found if running.pods else replace(found, requeue_after=FIRST_POD_SECONDS)
    if due is None:
        found = _with_message(
            found, target, target, inconclusive=found.inconclusive or _ephemeral(model, observed, target)
        )
        return replace(found, requeue_after=min(delays, default=None))
    revision, pod, reason = due
    # counts on from all existing attempts, so that no name is used twice
    attempt = max((_attempt(job) for job in observed.parity_jobs), default=0) % _MAX_ATTEMPT + 1
    shared = observed.pvc is not None and observed.pvc.shared and observed.pvc.name == revision.pinned["claim"]
    manifest = parity_job.build(model, revision, pod, attempt=attempt, shared=shared, settings=settings)
    found = replace(found, actions=(*found.actions, Apply(manifest, None)))
    starting = f"Job {manifest['metadata']['name']} is starting"
    return _with_message(found, revision, target, running=starting, inconclusive=reason)


def _ephemeral(model: EncoderModel, observed: ObservedState, target: Revision | None) -> str:
    """Return which pod of an unverified platform is not compared because of an ephemeral container; empty if there is none."""
    for pod in observed.pods:
        if target is None or pod.revision != target.hash or not pod.has_ephemeral_containers or pod.deleting:
            continue
        if verification_state(model, observed, target.hash, platform_of(pod)) in _UNVERIFIED:
            return f"Pod {pod.name} has an ephemeral container and is not compared; delete the pod to replace it"
    return ""


def _with_message(
    found: VerificationPlan, of: Revision | None, target: Revision | None, *, running: str = "", inconclusive: str = ""
) -> VerificationPlan:
    """Return the plan with a message about one revision. Of several inconclusive revisions, the first is reported."""
    if of is None or target is None or of.hash != target.hash:
        if running:
            return replace(found, other=Problem(Reason.PARITY_RUNNING, running))
        return replace(found, other=found.other or Problem(Reason.INCONCLUSIVE, inconclusive))
    if running:
        return replace(found, running=running, inconclusive=inconclusive)
    return replace(found, inconclusive=found.inconclusive or inconclusive)


def _running_message(observed: ObservedState, job: Job) -> str:
    binding = parse_json(job.annotations.get(naming.BINDING, "")).get("uid")
    pod = next((pod.name for pod in observed.pods if pod.uid == binding), "")
    last = job.last_pod
    problem = pod_diagnosis.diagnose(last) if last else None
    cause = problem.message if problem else job.rejection
    if cause:
        # the kubelet, the scheduler and the Job controller retry until the Job's deadline
        return f"Job {job.name} for pod {pod} cannot start: {cause}"
    return f"Job {job.name} is comparing pod {pod} with the reference outputs"


def _backoff_left(observed: ObservedState, attempts: list[Job]) -> float:
    """Return the seconds until the next attempt after inconclusive ones."""
    if not attempts:
        return 0.0
    delay = min(_MAX_BACKOFF, _INITIAL_BACKOFF * 2 ** (len(attempts) - 1))
    ended = attempts[-1].finished_at or attempts[-1].created
    return (ended + timedelta(seconds=delay) - observed.now).total_seconds()


def _revisions_to_verify(model: EncoderModel, observed: ObservedState, target: Revision | None) -> list[Revision]:
    """Return the revisions whose pods should be verified, in order of preference."""
    found = []
    if target is not None and (
        (state := overall_state(model, observed, target.hash)) is VerificationState.NONE or may_serve(model, state)
    ):
        found.append(target)
    others = [entry for entry in observed.revisions if target is None or entry.hash != target.hash]
    available = [entry for entry in others if may_serve(model, overall_state(model, observed, entry.hash))]
    return found + sorted(available, key=lambda entry: entry.number, reverse=True)


def _pods_to_verify(
    model: EncoderModel, observed: ObservedState, target: Revision | None
) -> list[tuple[Revision, Pod]]:
    """Return the oldest available pod of each unverified platform."""
    found: dict[tuple[str, Platform], tuple[Revision, Pod]] = {}
    for revision in _revisions_to_verify(model, observed, target):
        # revisions other than the target are not compared again only because the thresholds have changed
        wanted = revision is target
        due = (*_UNVERIFIED, VerificationState.STALE) if wanted else _UNVERIFIED
        for pod in sorted(observed.pods, key=lambda pod: (pod.created, pod.name)):
            available = pod.containers_ready and pod.ip and pod.product and not pod.deleting
            # an ephemeral container shares the pod's address, so it could answer instead of the engine
            if pod.revision != revision.hash or not available or pod.has_ephemeral_containers:
                continue
            if verification_state(model, observed, revision.hash, platform_of(pod)) in due:
                found.setdefault((revision.hash, platform_of(pod)), (revision, pod))
    return list(found.values())


def verdict_message(verdict: Verdict) -> str:
    """Return a message with the numbers of a verdict."""
    return parity_message(verdict.revision, verdict.product, verdict.data)


def _counts_under(policy: ParityPolicy, verdict: Verdict) -> bool:
    # a failure counts until the user sets a new retry annotation; removing the annotation does not invalidate it
    return verdict.passed or policy.retry in ("", verdict.retry)


def _is_current(model: EncoderModel, job: Job) -> bool:
    return (
        model.retry in ("", job.annotations.get(naming.RETRY, ""))
        and job.annotations.get(naming.THRESHOLDS, "") == model.thresholds
    )


def _is_finished(job: Job) -> bool:
    return job.finished or any(pod.terminated for pod in job.pods)


def _attempt_order(job: Job) -> tuple[object, int]:
    return job.created, _attempt(job)


def _attempt(job: Job) -> int:
    number = job.name.rpartition("-")[2]
    return int(number) if number.isdigit() else 0


def _platform_of_job(job: Job) -> Platform:
    binding = parse_json(job.annotations.get(naming.BINDING, ""))
    return Platform(str(binding.get("product", "")), str(binding.get("imageID", "")))


def _is_same_pod(observed: ObservedState, revision: Revision, job: Job) -> bool:
    """Return whether the pod that the Job was created for still exists with the same containers."""
    binding = parse_json(job.annotations.get(naming.BINDING, ""))
    live = next((pod for pod in observed.pods if pod.uid == binding.get("uid") and not pod.deleting), None)
    if live is None or live.has_ephemeral_containers:
        return False
    return binding == parity_job.binding(live, revision.hash)


def _is_obsolete(model: EncoderModel, observed: ObservedState, revision: Revision | None, job: Job) -> bool:
    if job.deleting or _is_finished(job):
        return False
    if model.spec.suspend or model.spec.parity.mode == "Disabled":
        return True
    return revision is None or not _is_current(model, job) or not _is_same_pod(observed, revision, job)


def _accepted_verdict(model: EncoderModel, observed: ObservedState, revision: Revision, job: Job) -> Json | None:
    """Return the verdict that the Job reported, if it is bound to exactly this revision and to a pod that has not changed."""
    pod = next((pod for pod in job.pods if pod.terminated), None)
    if (
        pod is None
        or pod.terminated is None
        or not _is_current(model, job)
        or _inconclusive_reason(observed, revision, job)
    ):
        return None
    report = pod.terminated.report()
    return {
        "result": report["result"],
        "product": report["binding"]["product"],
        "thresholds": model.thresholds,
        "retry": job.annotations.get(naming.RETRY, ""),
        "artifact": report["artifact"],
        "reference": report["reference"],
        "binding": report["binding"],
        "metrics": report.get("metrics", []),
        "cases": report.get("cases", 0),
        "versions": report.get("versions", {}),
        "worst": report.get("worst", []),
        **({"wrong": report["wrong"]} if report.get("wrong") else {}),
        "message": report.get("message", ""),
        "ranAt": format_time(pod.terminated.finished_at or observed.now),
    }


def _inconclusive_reason(observed: ObservedState, revision: Revision, job: Job) -> str:
    """Return why a finished Job was inconclusive, or an empty string if it was conclusive."""
    pod = next((pod for pod in job.pods if pod.terminated), None)
    if pod is None or pod.terminated is None:
        return f"Job {job.name} ended without a report{': ' if job.message else ''}{job.message}"
    report = pod.terminated.report()
    result = report.get("result")
    if result not in ("Passed", "Failed"):
        text = report.get("message") or pod.terminated.message.strip()[-300:] or f"exit code {pod.terminated.exit_code}"
        return f"Job {job.name} was inconclusive: {text}"
    if result == "Passed" and pod.terminated.exit_code != 0:
        return f"Job {job.name} reported Passed but failed with exit code {pod.terminated.exit_code}"
    pinned = revision.pinned["artifact"]
    if report.get("artifact") != pinned["digest"] or report.get("reference") != pinned["reference"]:
        return f"Job {job.name} used another artifact or other reference outputs than the revision"
    if report.get("binding") != parse_json(job.annotations.get(naming.BINDING, "")) or not _is_same_pod(
        observed, revision, job
    ):
        return f"The pod changed during parity check {job.name}"
    return ""
