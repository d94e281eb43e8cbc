"""Decides about proof: what is proved of a revision, whether a comparison must run, and whether a pod's gate is open."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum, auto
from typing import NamedTuple

from encoder_operator import facts as observed
from encoder_operator import names
from encoder_operator.canonical import Json
from encoder_operator.facts import Facts, Gate, Job, Pod, Revision, Verdict
from encoder_operator.manifests import parity_job, records
from encoder_operator.model import Model
from encoder_operator.plan import Action, Apply, Delete, SetGate
from encoder_operator.reasons import Reason
from encoder_operator.settings import Settings

_FIRST_DELAY = 5.0
_LONGEST_DELAY = 300.0
# names of attempts must fit a label; by the time that this is reached the first ones are long gone
_MAX_ATTEMPT = 9999


class Proof(Enum):
    """What is known of a revision on an accelerator product."""

    NONE = auto()
    PASSED = auto()
    FAILED = auto()
    # passed under thresholds that have changed since: serves on while it is compared again
    STALE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What to do about proof, and what to say of it."""

    facts: Facts
    actions: tuple[Action, ...] = ()
    running: str = ""
    inconclusive: str = ""
    wake_after: float | None = None


class Place(NamedTuple):
    """What a verdict speaks for: one accelerator product, and one image by its digest."""

    product: str
    image: str


def proof(model: Model, verdicts: tuple[Verdict, ...], revision: str, place: Place) -> Proof:
    """Return what is proved of ``revision`` in a place."""
    found = [v for v in verdicts if v.revision == revision and place_of(v) == place and _counts(model, v)]
    exact = [v for v in found if v.thresholds == model.thresholds]
    if exact:
        return Proof.PASSED if any(v.passed for v in exact) else Proof.FAILED
    return Proof.STALE if any(v.passed for v in found) else Proof.NONE


def overall(model: Model, verdicts: tuple[Verdict, ...], revision: str) -> Proof:
    """Return what is proved of ``revision`` anywhere: a pass makes it worth keeping."""
    places = {place_of(v) for v in verdicts if v.revision == revision}
    found = {proof(model, verdicts, revision, place) for place in places}
    return next((p for p in (Proof.PASSED, Proof.STALE, Proof.FAILED) if p in found), Proof.NONE)


def place_of(found: Verdict | Pod) -> Place:
    """Return where a pod runs, or what a verdict was made on."""
    return Place(found.product, found.image if isinstance(found, Verdict) else found.image_id)


def serves(model: Model, found: Proof) -> bool:
    """Return whether a pod with this proof may get traffic."""
    match model.spec.parity.mode:
        case "Disabled":
            return True
        case "Warn":
            return found is not Proof.NONE
        case _:
            return found in (Proof.PASSED, Proof.STALE)


def latest(model: Model, verdicts: tuple[Verdict, ...], revision: str) -> Verdict | None:
    """Return the verdict that speaks for ``revision``: of today's thresholds if there is one, a pass before a failure."""
    found = [v for v in verdicts if v.revision == revision and _counts(model, v)]
    return max(found, key=lambda v: (v.thresholds == model.thresholds, v.passed, v.created, v.name), default=None)


def decide(model: Model, facts: Facts, target: Revision, *, shared: bool, settings: Settings) -> Verification:
    """Return what must happen until ``target`` is proved or refused."""
    actions: list[Action] = [
        Delete("Job", job.name) for job in facts.parity_jobs if _obsolete(model, facts, target, job)
    ]
    gone = {action.name for action in actions if isinstance(action, Delete)}
    jobs = [job for job in facts.parity_jobs if job.revision == target.hash and job.name not in gone]
    for job in jobs:
        data = _accepted(model, facts, target, job)
        if data is None:
            continue
        place = Place(data["product"], data["binding"]["imageID"])
        if proof(model, facts.verdicts, target.hash, place) in (Proof.PASSED, Proof.FAILED):
            continue
        manifest = records.verdict(model, target.hash, data)
        actions.append(Apply(manifest, None))
        # named in this pass as the API server will list it in the next
        manifest = manifest | {"metadata": manifest["metadata"] | {"creationTimestamp": observed.spelled(facts.now)}}
        facts = replace(facts, verdicts=(*facts.verdicts, observed.verdict(manifest)))
    found = Verification(facts=facts, actions=tuple(actions))
    if model.spec.parity.mode == "Disabled" or model.spec.suspend:
        return found
    return _next(model, found, target, jobs, shared=shared, settings=settings)


def _next(
    model: Model, found: Verification, target: Revision, jobs: list[Job], *, shared: bool, settings: Settings
) -> Verification:
    facts = found.facts
    pod = _candidate(model, facts, target)
    if pod is None:
        return found
    mine = [job for job in jobs if _current(model, job)]
    running = next((job for job in mine if not _over(job) and not job.deleting), None)
    if running is not None:
        return replace(found, running=f"Job {running.name} compares pod {pod.name} with the original library's answers")
    tried = sorted((job for job in mine if _over(job) and _place(job) == place_of(pod)), key=_order)
    inconclusive = _why(model, facts, target, tried[-1]) if tried else ""
    if tried:
        last = tried[-1]
        delay = min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** (len(tried) - 1))
        due = (last.finished_at or last.created) + timedelta(seconds=delay)
        if facts.now < due:
            left = (due - facts.now).total_seconds()
            return replace(found, inconclusive=inconclusive, wake_after=max(left, 0.1))
    # the number goes on from every attempt that is still there, so that a name is never used twice
    attempt = (
        max((int(job.annotations.get(names.ATTEMPT, 0)) for job in facts.parity_jobs), default=0) % _MAX_ATTEMPT + 1
    )
    manifest = parity_job.render(model, target, pod, attempt=attempt, shared=shared, settings=settings)
    return replace(
        found,
        actions=(*found.actions, Apply(manifest, None)),
        running=f"Job {manifest['metadata']['name']} is starting",
        inconclusive=inconclusive,
    )


def _candidate(model: Model, facts: Facts, target: Revision) -> Pod | None:
    """Return the oldest pod that can be asked, of a product that nothing is proved about yet."""
    able = [
        pod
        for pod in facts.pods
        if pod.revision == target.hash
        and pod.containers_ready
        and pod.address
        and pod.product
        and not pod.deleting
        and proof(model, facts.verdicts, target.hash, place_of(pod)) in (Proof.NONE, Proof.STALE)
    ]
    return min(able, key=lambda pod: (pod.created, pod.name), default=None)


def gates(model: Model, facts: Facts) -> tuple[SetGate, ...]:
    """Return the gates to change."""
    found = []
    for pod in facts.pods:
        wanted = _gate(model, facts, pod)
        if not pod.deleting and wanted is not None and wanted != pod.gate:
            found.append(SetGate(pod.name, pod.uid, wanted))
    return tuple(found)


def kept_open(facts: Facts) -> tuple[SetGate, ...]:
    """Return the gates to open while the spec can't be acted on: what was proved before still is, also on a pod that is new."""
    passed = {(v.revision, place_of(v)): v for v in facts.verdicts if v.passed}
    return tuple(
        SetGate(
            pod.name,
            pod.uid,
            Gate(open=True, reason=Reason.PARITY_PASSED, message=said(passed[pod.revision, place_of(pod)])),
        )
        for pod in facts.pods
        if (pod.revision, place_of(pod)) in passed and not pod.deleting and not (pod.gate and pod.gate.open)
    )


def _gate(model: Model, facts: Facts, pod: Pod) -> Gate | None:
    if model.spec.parity.mode == "Disabled":
        return Gate(open=True, reason=Reason.DISABLED, message="spec.parity.mode is Disabled")
    place = place_of(pod)
    state = proof(model, facts.verdicts, pod.revision, place) if pod.product else Proof.NONE
    if state is Proof.NONE:
        # a pod without the condition is closed already: nothing to write
        closed = Gate(open=False, reason=Reason.NOT_VERIFIED, message="this revision is not verified here")
        return closed if pod.gate is not None else None
    verdict = latest(model, tuple(v for v in facts.verdicts if place_of(v) == place), pod.revision)
    numbers = said(verdict) if verdict else ""
    if state is Proof.FAILED:
        return Gate(open=serves(model, state), reason=Reason.PARITY_FAILED, message=numbers)
    return Gate(open=True, reason=Reason.PARITY_PASSED, message=numbers)


def said(verdict: Verdict) -> str:
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


def _counts(model: Model, verdict: Verdict) -> bool:
    # a failure holds until a person asks for another try, which an annotation that is gone does not; a pass holds
    return verdict.passed or model.retry in ("", verdict.retry)


def _current(model: Model, job: Job) -> bool:
    return (
        model.retry in ("", job.annotations.get(names.RETRY, ""))
        and job.annotations.get(names.THRESHOLDS, "") == model.thresholds
    )


def _over(job: Job) -> bool:
    return job.finished or any(pod.ended for pod in job.pods)


def _order(job: Job) -> tuple[object, int]:
    return job.created, int(job.annotations.get(names.ATTEMPT, 0))


def _place(job: Job) -> Place:
    asked = observed.parsed(job.annotations.get(names.BINDING, ""))
    return Place(str(asked.get("product", "")), str(asked.get("imageID", "")))


def _bound(facts: Facts, target: Revision, job: Job) -> bool:
    """Whether the pod that the Job was made for is still the same, down to its containers."""
    asked = observed.parsed(job.annotations.get(names.BINDING, ""))
    live = next((pod for pod in facts.pods if pod.uid == asked.get("uid") and not pod.deleting), None)
    return live is not None and asked == parity_job.binding(live, target.hash)


def _obsolete(model: Model, facts: Facts, target: Revision, job: Job) -> bool:
    if job.deleting or _over(job):
        return False
    if model.spec.suspend or model.spec.parity.mode == "Disabled":
        return True
    return job.revision != target.hash or not _current(model, job) or not _bound(facts, target, job)


def _accepted(model: Model, facts: Facts, target: Revision, job: Job) -> Json | None:
    """Return the verdict that the Job has left, if it speaks of exactly this revision and of a pod that is still the same."""
    pod = next((pod for pod in job.pods if pod.ended), None)
    if pod is None or pod.ended is None or not _current(model, job) or _why(model, facts, target, job):
        return None
    report = pod.ended.report()
    return {
        "result": report["result"],
        "product": report["binding"]["product"],
        "thresholds": model.thresholds,
        "retry": job.annotations.get(names.RETRY, ""),
        "artifact": report["artifact"],
        "reference": report["reference"],
        "binding": report["binding"],
        "metrics": report.get("metrics", []),
        "cases": report.get("cases", 0),
        "worst": report.get("worst", []),
        "message": report.get("message", ""),
        "ranAt": observed.spelled(pod.ended.finished_at or facts.now),
    }


def _why(model: Model, facts: Facts, target: Revision, job: Job) -> str:
    """Say why a finished Job has proved nothing, or nothing if it has."""
    pod = next((pod for pod in job.pods if pod.ended), None)
    if pod is None or pod.ended is None:
        return f"Job {job.name} ended without a report{': ' if job.message else ''}{job.message}"
    report = pod.ended.report()
    result = report.get("result")
    if result not in ("Passed", "Failed"):
        said = report.get("message") or pod.ended.message.strip()[-300:] or f"exit code {pod.ended.exit_code}"
        return f"Job {job.name} could not compare: {said}"
    pinned = target.pinned["artifact"]
    if report.get("artifact") != pinned["digest"] or report.get("reference") != pinned["reference"]:
        return f"Job {job.name} compared with another artifact or reference than the revision's"
    if report.get("binding") != observed.parsed(job.annotations.get(names.BINDING, "")) or not _bound(
        facts, target, job
    ):
        return f"the pod that Job {job.name} compared has changed since"
    return ""
