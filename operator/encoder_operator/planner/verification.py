"""Decides about proof: what is proved of a revision, whether a comparison must run, and whether a pod's gate is open.

One comparison runs at a time. The wanted revision comes first; then those that may serve beside it or instead of it, whose pods may
come to places where nothing was compared yet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum, auto
from typing import NamedTuple

from encoder_operator import naming
from encoder_operator.manager.settings import Settings
from encoder_operator.planner.actions import Action, Apply, Delete, SetGate
from encoder_operator.resources import controller_revisions, parity_job
from encoder_operator.revisions.hashing import Json, json_digest
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import (
    GateCondition,
    Job,
    ObservedState,
    Pod,
    Revision,
    Verdict,
    format_time,
    parse_json,
    parse_verdict,
)
from encoder_operator.status import pod_diagnosis
from encoder_operator.status.pod_diagnosis import Problem
from encoder_operator.status.reasons import Reason

_INITIAL_BACKOFF = 5.0
_MAX_BACKOFF = 300.0
# names of attempts must fit a label; by the time that this is reached the first ones are long gone
_MAX_ATTEMPT = 9999


class VerificationState(Enum):
    """What is known of a revision on an accelerator product."""

    NONE = auto()
    PASSED = auto()
    FAILED = auto()
    # passed under thresholds that have changed since: serves on while it is compared again
    STALE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationPlan:
    """What to do about proof, and what to say of it."""

    observed: ObservedState
    actions: tuple[Action, ...] = ()
    # the comparison of the wanted revision that is at work, and why the last one has proved nothing
    running: str = ""
    inconclusive: str = ""
    # the same of a revision that serves instead of the wanted one
    other: Problem | None = None
    requeue_after: float | None = None


class Platform(NamedTuple):
    """What a verdict speaks for: one accelerator product, and one image by its digest."""

    product: str
    image: str


class ParityPolicy(NamedTuple):
    """What a person says about proof: how much of it is needed, under which thresholds, and since when a failure counts."""

    mode: str
    thresholds: str
    retry: str


def parity_policy(model: EncoderModel) -> ParityPolicy:
    """Return the terms of a model."""
    return ParityPolicy(model.spec.parity.mode, model.thresholds, model.retry)


def parity_policy_of_manifest(live: Json) -> ParityPolicy:
    """Return the terms of an EncoderModel that can't be acted on, as far as they can be read."""
    found = live.get("spec", {}).get("parity") or {}
    annotations = live["metadata"].get("annotations", {})
    mode, thresholds = str(found.get("mode", "Enforce")), json_digest(found.get("thresholds") or {})[:10]
    return ParityPolicy(mode, thresholds, annotations.get(naming.RETRY, ""))


def verification_state(
    model: EncoderModel, verdicts: tuple[Verdict, ...], revision: str, place: Platform
) -> VerificationState:
    """Return what is proved of ``revision`` in a place."""
    return _state(parity_policy(model), verdicts, revision, place)


def _state(terms: ParityPolicy, verdicts: tuple[Verdict, ...], revision: str, place: Platform) -> VerificationState:
    found = [v for v in verdicts if v.revision == revision and platform_of(v) == place and _counts_under(terms, v)]
    exact = [v for v in found if v.thresholds == terms.thresholds]
    if exact:
        return VerificationState.PASSED if any(v.passed for v in exact) else VerificationState.FAILED
    return VerificationState.STALE if any(v.passed for v in found) else VerificationState.NONE


def overall_state(model: EncoderModel, verdicts: tuple[Verdict, ...], revision: str) -> VerificationState:
    """Return what is proved of ``revision`` anywhere: a pass makes it worth keeping."""
    places = {platform_of(v) for v in verdicts if v.revision == revision}
    found = {verification_state(model, verdicts, revision, place) for place in places}
    return next(
        (p for p in (VerificationState.PASSED, VerificationState.STALE, VerificationState.FAILED) if p in found),
        VerificationState.NONE,
    )


def platform_of(found: Verdict | Pod) -> Platform:
    """Return where a pod runs, or what a verdict was made on."""
    return Platform(found.product, found.image if isinstance(found, Verdict) else found.image_id)


def may_serve(model: EncoderModel, found: VerificationState) -> bool:
    """Return whether a pod with this proof may get traffic."""
    return _may_serve(parity_policy(model), found)


def _may_serve(terms: ParityPolicy, found: VerificationState) -> bool:
    match terms.mode:
        case "Disabled":
            return True
        case "Warn":
            return found is not VerificationState.NONE
        case _:
            return found in (VerificationState.PASSED, VerificationState.STALE)


def latest_verdict(model: EncoderModel, verdicts: tuple[Verdict, ...], revision: str) -> Verdict | None:
    """Return the verdict that speaks for ``revision``: of today's thresholds if there is one, a pass before a failure."""
    return _latest_verdict(parity_policy(model), verdicts, revision)


def _latest_verdict(terms: ParityPolicy, verdicts: tuple[Verdict, ...], revision: str) -> Verdict | None:
    found = [v for v in verdicts if v.revision == revision and _counts_under(terms, v)]
    return max(found, key=lambda v: (v.thresholds == terms.thresholds, v.passed, v.created, v.name), default=None)


def plan(
    model: EncoderModel, observed: ObservedState, target: Revision | None, *, settings: Settings
) -> VerificationPlan:
    """Return what must happen until ``target`` is proved or refused, and each pod that may serve is proved where it is."""
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
        place = Platform(data["product"], data["binding"]["imageID"])
        if verification_state(model, observed.verdicts, job.revision, place) in (
            VerificationState.PASSED,
            VerificationState.FAILED,
        ):
            continue
        manifest = controller_revisions.build_verdict(model, job.revision, data)
        actions.append(Apply(manifest, None))
        # named in this pass as the API server will list it in the next
        manifest = manifest | {"metadata": manifest["metadata"] | {"creationTimestamp": format_time(observed.now)}}
        observed = replace(observed, verdicts=(*observed.verdicts, parse_verdict(manifest)))
    found = VerificationPlan(observed=observed, actions=tuple(actions))
    if model.spec.parity.mode == "Disabled" or model.spec.suspend:
        return found
    return _plan_next(model, found, target, [job for job in jobs if _is_current(model, job)], settings=settings)


def _plan_next(
    model: EncoderModel, found: VerificationPlan, target: Revision | None, jobs: list[Job], *, settings: Settings
) -> VerificationPlan:
    """Say which comparison is at work, or start the one that is due."""
    observed = found.observed
    waits: list[float] = []
    due: tuple[Revision, Pod, str] | None = None
    for revision, pod in _pods_to_verify(model, observed, target):
        tried = sorted(
            (
                job
                for job in jobs
                if job.revision == revision.hash and _is_finished(job) and _platform_of_job(job) == platform_of(pod)
            ),
            key=_attempt_order,
        )
        why = _inconclusive_reason(observed, revision, tried[-1]) if tried else ""
        left = _backoff_left(observed, tried)
        if left > 0:
            waits.append(max(left, 0.1))
            found = _with_message(found, revision, target, inconclusive=why)
        elif due is None:
            due = revision, pod, why
    running = next((job for job in jobs if not _is_finished(job) and not job.deleting), None)
    if running is not None:
        of = next((entry for entry in observed.revisions if entry.hash == running.revision), target)
        return _with_message(found, of, target, running=_running_message(observed, running))
    if due is None:
        return replace(found, requeue_after=min(waits, default=None))
    revision, pod, why = due
    # the number goes on from every attempt that is still there, so that a name is never used twice
    attempt = max((_attempt(job) for job in observed.parity_jobs), default=0) % _MAX_ATTEMPT + 1
    shared = observed.pvc is not None and observed.pvc.shared and observed.pvc.name == revision.pinned["claim"]
    manifest = parity_job.build(model, revision, pod, attempt=attempt, shared=shared, settings=settings)
    found = replace(found, actions=(*found.actions, Apply(manifest, None)))
    starting = f"Job {manifest['metadata']['name']} is starting"
    return _with_message(found, revision, target, running=starting, inconclusive=why)


def _with_message(
    found: VerificationPlan, of: Revision | None, target: Revision | None, *, running: str = "", inconclusive: str = ""
) -> VerificationPlan:
    """Say what is known of one revision's comparisons; of several that have proved nothing, the first is named."""
    if of is None or target is None or of.hash != target.hash:
        if running:
            return replace(found, other=Problem(Reason.PARITY_RUNNING, running))
        return replace(found, other=found.other or Problem(Reason.INCONCLUSIVE, inconclusive))
    if running:
        return replace(found, running=running, inconclusive=inconclusive)
    return replace(found, inconclusive=found.inconclusive or inconclusive)


def _running_message(observed: ObservedState, job: Job) -> str:
    asked = parse_json(job.annotations.get(naming.BINDING, "")).get("uid")
    pod = next((pod.name for pod in observed.pods if pod.uid == asked), "")
    last = job.last_pod
    problem = pod_diagnosis.diagnose(last) if last else None
    if problem is not None:
        # the kubelet and the scheduler try again by themselves, until the Job's deadline
        return f"Job {job.name} is to compare pod {pod} and can't start: {problem.message}"
    return f"Job {job.name} compares pod {pod} with the original library's answers"


def _backoff_left(observed: ObservedState, tried: list[Job]) -> float:
    """Return for how many seconds there is no further try, after those that have proved nothing."""
    if not tried:
        return 0.0
    delay = min(_MAX_BACKOFF, _INITIAL_BACKOFF * 2 ** (len(tried) - 1))
    ended = tried[-1].finished_at or tried[-1].created
    return (ended + timedelta(seconds=delay) - observed.now).total_seconds()


def _revisions_to_verify(model: EncoderModel, observed: ObservedState, target: Revision | None) -> list[Revision]:
    """Return the revisions whose pods are worth comparing, the most wanted first."""
    found = []
    if target is not None and (
        (state := overall_state(model, observed.verdicts, target.hash)) is VerificationState.NONE
        or may_serve(model, state)
    ):
        found.append(target)
    others = [entry for entry in observed.revisions if target is None or entry.hash != target.hash]
    able = [entry for entry in others if may_serve(model, overall_state(model, observed.verdicts, entry.hash))]
    return found + sorted(able, key=lambda entry: entry.number, reverse=True)


def _pods_to_verify(
    model: EncoderModel, observed: ObservedState, target: Revision | None
) -> list[tuple[Revision, Pod]]:
    """Return the oldest pod that can be asked in each place that nothing is proved about yet."""
    found: dict[tuple[str, Platform], tuple[Revision, Pod]] = {}
    for revision in _revisions_to_verify(model, observed, target):
        # what only stands by is not compared again because thresholds have changed
        wanted = revision is target
        open_ = (VerificationState.NONE, VerificationState.STALE) if wanted else (VerificationState.NONE,)
        for pod in sorted(observed.pods, key=lambda pod: (pod.created, pod.name)):
            able = pod.containers_ready and pod.ip and pod.product and not pod.deleting
            if pod.revision != revision.hash or not able:
                continue
            if verification_state(model, observed.verdicts, revision.hash, platform_of(pod)) in open_:
                found.setdefault((revision.hash, platform_of(pod)), (revision, pod))
    return list(found.values())


def gates_to_set(model: EncoderModel, observed: ObservedState) -> tuple[SetGate, ...]:
    """Return the gates to change."""
    found = []
    for pod in observed.pods:
        wanted = _gate(parity_policy(model), observed, pod)
        if not pod.deleting and wanted is not None and wanted != pod.gate:
            found.append(SetGate(pod.name, pod.uid, wanted))
    return tuple(found)


def gates_to_open(terms: ParityPolicy, observed: ObservedState) -> tuple[SetGate, ...]:
    """Return the gates to open while nothing else is done: what might serve before still may, also on a pod that is new."""
    shut = [pod for pod in observed.pods if not pod.deleting and not (pod.gate and pod.gate.open)]
    wanted = [(pod, _gate(terms, observed, pod)) for pod in shut]
    return tuple(SetGate(pod.name, pod.uid, gate) for pod, gate in wanted if gate is not None and gate.open)


def _gate(terms: ParityPolicy, observed: ObservedState, pod: Pod) -> GateCondition | None:
    if terms.mode == "Disabled":
        return GateCondition(open=True, reason=Reason.DISABLED, message="spec.parity.mode is Disabled")
    place = platform_of(pod)
    state = _state(terms, observed.verdicts, pod.revision, place) if pod.product else VerificationState.NONE
    if state is VerificationState.NONE:
        # a pod without the condition is closed already: nothing to write
        closed = GateCondition(open=False, reason=Reason.NOT_VERIFIED, message="this revision is not verified here")
        return closed if pod.gate is not None else None
    verdict = _latest_verdict(terms, tuple(v for v in observed.verdicts if platform_of(v) == place), pod.revision)
    numbers = verdict_message(verdict) if verdict else ""
    if state is VerificationState.FAILED:
        return GateCondition(open=_may_serve(terms, state), reason=Reason.PARITY_FAILED, message=numbers)
    return GateCondition(open=True, reason=Reason.PARITY_PASSED, message=numbers)


def verdict_message(verdict: Verdict) -> str:
    """Return a verdict's numbers as a sentence."""
    data = verdict.data
    numbers = ", ".join(
        f"{m['name']} {m['value']}" + (f" (threshold {m['threshold']})" if m.get("threshold") else "")
        for m in data.get("metrics", [])
    )
    worst = data.get("worst") or []
    tail = f"; worst: {', '.join(str(case) for case in worst)}" if worst and not verdict.passed else ""
    passed = "equals the original library" if verdict.passed else "differs from the original library"
    return f"revision {verdict.revision} on {verdict.product} {passed}: {numbers} in {data.get('cases', 0)} cases{tail}"


def _counts_under(terms: ParityPolicy, verdict: Verdict) -> bool:
    # a failure holds until a person asks for another try, which an annotation that is gone does not; a pass holds
    return verdict.passed or terms.retry in ("", verdict.retry)


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
    asked = parse_json(job.annotations.get(naming.BINDING, ""))
    return Platform(str(asked.get("product", "")), str(asked.get("imageID", "")))


def _is_same_pod(observed: ObservedState, revision: Revision, job: Job) -> bool:
    """Whether the pod that the Job was made for is still the same, down to its containers."""
    asked = parse_json(job.annotations.get(naming.BINDING, ""))
    live = next((pod for pod in observed.pods if pod.uid == asked.get("uid") and not pod.deleting), None)
    return live is not None and asked == parity_job.binding(live, revision.hash)


def _is_obsolete(model: EncoderModel, observed: ObservedState, revision: Revision | None, job: Job) -> bool:
    if job.deleting or _is_finished(job):
        return False
    if model.spec.suspend or model.spec.parity.mode == "Disabled":
        return True
    return revision is None or not _is_current(model, job) or not _is_same_pod(observed, revision, job)


def _accepted_verdict(model: EncoderModel, observed: ObservedState, revision: Revision, job: Job) -> Json | None:
    """Return the verdict that the Job has left, if it speaks of exactly this revision and of a pod that is still the same."""
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
        "worst": report.get("worst", []),
        "message": report.get("message", ""),
        "ranAt": format_time(pod.terminated.finished_at or observed.now),
    }


def _inconclusive_reason(observed: ObservedState, revision: Revision, job: Job) -> str:
    """Say why a finished Job has proved nothing, or nothing if it has."""
    pod = next((pod for pod in job.pods if pod.terminated), None)
    if pod is None or pod.terminated is None:
        return f"Job {job.name} ended without a report{': ' if job.message else ''}{job.message}"
    report = pod.terminated.report()
    result = report.get("result")
    if result not in ("Passed", "Failed"):
        said = report.get("message") or pod.terminated.message.strip()[-300:] or f"exit code {pod.terminated.exit_code}"
        return f"Job {job.name} could not compare: {said}"
    pinned = revision.pinned["artifact"]
    if report.get("artifact") != pinned["digest"] or report.get("reference") != pinned["reference"]:
        return f"Job {job.name} compared with another artifact or reference than the revision's"
    if report.get("binding") != parse_json(job.annotations.get(naming.BINDING, "")) or not _is_same_pod(
        observed, revision, job
    ):
        return f"the pod that Job {job.name} compared has changed since"
    return ""
