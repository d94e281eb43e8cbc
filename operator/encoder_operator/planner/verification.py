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
from encoder_operator.revisions.hashing import Json, digest
from encoder_operator.state import observed
from encoder_operator.state.desired import Model
from encoder_operator.state.observed import Facts, Gate, Job, Pod, Revision, Verdict
from encoder_operator.status import pod_diagnosis
from encoder_operator.status.pod_diagnosis import Problem
from encoder_operator.status.reasons import Reason

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
    # the comparison of the wanted revision that is at work, and why the last one has proved nothing
    running: str = ""
    inconclusive: str = ""
    # the same of a revision that serves instead of the wanted one
    beside: Problem | None = None
    wake_after: float | None = None


class Place(NamedTuple):
    """What a verdict speaks for: one accelerator product, and one image by its digest."""

    product: str
    image: str


class Terms(NamedTuple):
    """What a person says about proof: how much of it is needed, under which thresholds, and since when a failure counts."""

    mode: str
    thresholds: str
    retry: str


def terms_of(model: Model) -> Terms:
    """Return the terms of a model."""
    return Terms(model.spec.parity.mode, model.thresholds, model.retry)


def terms_in(live: Json) -> Terms:
    """Return the terms of an EncoderModel that can't be acted on, as far as they can be read."""
    found = live.get("spec", {}).get("parity") or {}
    annotations = live["metadata"].get("annotations", {})
    mode, thresholds = str(found.get("mode", "Enforce")), digest(found.get("thresholds") or {})[:10]
    return Terms(mode, thresholds, annotations.get(naming.RETRY, ""))


def proof(model: Model, verdicts: tuple[Verdict, ...], revision: str, place: Place) -> Proof:
    """Return what is proved of ``revision`` in a place."""
    return _proof(terms_of(model), verdicts, revision, place)


def _proof(terms: Terms, verdicts: tuple[Verdict, ...], revision: str, place: Place) -> Proof:
    found = [v for v in verdicts if v.revision == revision and place_of(v) == place and _counts(terms, v)]
    exact = [v for v in found if v.thresholds == terms.thresholds]
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
    return _serves(terms_of(model), found)


def _serves(terms: Terms, found: Proof) -> bool:
    match terms.mode:
        case "Disabled":
            return True
        case "Warn":
            return found is not Proof.NONE
        case _:
            return found in (Proof.PASSED, Proof.STALE)


def latest(model: Model, verdicts: tuple[Verdict, ...], revision: str) -> Verdict | None:
    """Return the verdict that speaks for ``revision``: of today's thresholds if there is one, a pass before a failure."""
    return _latest(terms_of(model), verdicts, revision)


def _latest(terms: Terms, verdicts: tuple[Verdict, ...], revision: str) -> Verdict | None:
    found = [v for v in verdicts if v.revision == revision and _counts(terms, v)]
    return max(found, key=lambda v: (v.thresholds == terms.thresholds, v.passed, v.created, v.name), default=None)


def decide(model: Model, facts: Facts, target: Revision | None, *, settings: Settings) -> Verification:
    """Return what must happen until ``target`` is proved or refused, and each pod that may serve is proved where it is."""
    compared = {found.hash: found for found in _compared(model, facts, target)}
    actions: list[Action] = [
        Delete("Job", job.name) for job in facts.parity_jobs if _obsolete(model, facts, compared.get(job.revision), job)
    ]
    gone = {action.name for action in actions if isinstance(action, Delete)}
    jobs = [job for job in facts.parity_jobs if job.revision in compared and job.name not in gone]
    for job in jobs:
        data = _accepted(model, facts, compared[job.revision], job)
        if data is None:
            continue
        place = Place(data["product"], data["binding"]["imageID"])
        if proof(model, facts.verdicts, job.revision, place) in (Proof.PASSED, Proof.FAILED):
            continue
        manifest = controller_revisions.verdict(model, job.revision, data)
        actions.append(Apply(manifest, None))
        # named in this pass as the API server will list it in the next
        manifest = manifest | {"metadata": manifest["metadata"] | {"creationTimestamp": observed.spelled(facts.now)}}
        facts = replace(facts, verdicts=(*facts.verdicts, observed.verdict(manifest)))
    found = Verification(facts=facts, actions=tuple(actions))
    if model.spec.parity.mode == "Disabled" or model.spec.suspend:
        return found
    return _next(model, found, target, [job for job in jobs if _current(model, job)], settings=settings)


def _next(
    model: Model, found: Verification, target: Revision | None, jobs: list[Job], *, settings: Settings
) -> Verification:
    """Say which comparison is at work, or start the one that is due."""
    facts = found.facts
    waits: list[float] = []
    due: tuple[Revision, Pod, str] | None = None
    for revision, pod in _candidates(model, facts, target):
        tried = sorted(
            (job for job in jobs if job.revision == revision.hash and _over(job) and _place(job) == place_of(pod)),
            key=_order,
        )
        why = _why(facts, revision, tried[-1]) if tried else ""
        left = _left(facts, tried)
        if left > 0:
            waits.append(max(left, 0.1))
            found = _told(found, revision, target, inconclusive=why)
        elif due is None:
            due = revision, pod, why
    running = next((job for job in jobs if not _over(job) and not job.deleting), None)
    if running is not None:
        of = next((entry for entry in facts.revisions if entry.hash == running.revision), target)
        return _told(found, of, target, running=_at_work(facts, running))
    if due is None:
        return replace(found, wake_after=min(waits, default=None))
    revision, pod, why = due
    # the number goes on from every attempt that is still there, so that a name is never used twice
    attempt = max((_attempt(job) for job in facts.parity_jobs), default=0) % _MAX_ATTEMPT + 1
    shared = facts.claim is not None and facts.claim.shared and facts.claim.name == revision.pinned["claim"]
    manifest = parity_job.render(model, revision, pod, attempt=attempt, shared=shared, settings=settings)
    found = replace(found, actions=(*found.actions, Apply(manifest, None)))
    starting = f"Job {manifest['metadata']['name']} is starting"
    return _told(found, revision, target, running=starting, inconclusive=why)


def _told(
    found: Verification, of: Revision | None, target: Revision | None, *, running: str = "", inconclusive: str = ""
) -> Verification:
    """Say what is known of one revision's comparisons; of several that have proved nothing, the first is named."""
    if of is None or target is None or of.hash != target.hash:
        if running:
            return replace(found, beside=Problem(Reason.PARITY_RUNNING, running))
        return replace(found, beside=found.beside or Problem(Reason.INCONCLUSIVE, inconclusive))
    if running:
        return replace(found, running=running, inconclusive=inconclusive)
    return replace(found, inconclusive=found.inconclusive or inconclusive)


def _at_work(facts: Facts, job: Job) -> str:
    asked = observed.parsed(job.annotations.get(naming.BINDING, "")).get("uid")
    pod = next((pod.name for pod in facts.pods if pod.uid == asked), "")
    last = job.last_pod
    problem = pod_diagnosis.of(last) if last else None
    if problem is not None:
        # the kubelet and the scheduler try again by themselves, until the Job's deadline
        return f"Job {job.name} is to compare pod {pod} and can't start: {problem.message}"
    return f"Job {job.name} compares pod {pod} with the original library's answers"


def _left(facts: Facts, tried: list[Job]) -> float:
    """Return for how many seconds there is no further try, after those that have proved nothing."""
    if not tried:
        return 0.0
    delay = min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** (len(tried) - 1))
    ended = tried[-1].finished_at or tried[-1].created
    return (ended + timedelta(seconds=delay) - facts.now).total_seconds()


def _compared(model: Model, facts: Facts, target: Revision | None) -> list[Revision]:
    """Return the revisions whose pods are worth comparing, the most wanted first."""
    found = []
    if target is not None and (
        (state := overall(model, facts.verdicts, target.hash)) is Proof.NONE or serves(model, state)
    ):
        found.append(target)
    others = [entry for entry in facts.revisions if target is None or entry.hash != target.hash]
    able = [entry for entry in others if serves(model, overall(model, facts.verdicts, entry.hash))]
    return found + sorted(able, key=lambda entry: entry.number, reverse=True)


def _candidates(model: Model, facts: Facts, target: Revision | None) -> list[tuple[Revision, Pod]]:
    """Return the oldest pod that can be asked in each place that nothing is proved about yet."""
    found: dict[tuple[str, Place], tuple[Revision, Pod]] = {}
    for revision in _compared(model, facts, target):
        # what only stands by is not compared again because thresholds have changed
        wanted = revision is target
        open_ = (Proof.NONE, Proof.STALE) if wanted else (Proof.NONE,)
        for pod in sorted(facts.pods, key=lambda pod: (pod.created, pod.name)):
            able = pod.containers_ready and pod.address and pod.product and not pod.deleting
            if pod.revision != revision.hash or not able:
                continue
            if proof(model, facts.verdicts, revision.hash, place_of(pod)) in open_:
                found.setdefault((revision.hash, place_of(pod)), (revision, pod))
    return list(found.values())


def gates(model: Model, facts: Facts) -> tuple[SetGate, ...]:
    """Return the gates to change."""
    found = []
    for pod in facts.pods:
        wanted = _gate(terms_of(model), facts, pod)
        if not pod.deleting and wanted is not None and wanted != pod.gate:
            found.append(SetGate(pod.name, pod.uid, wanted))
    return tuple(found)


def kept_open(terms: Terms, facts: Facts) -> tuple[SetGate, ...]:
    """Return the gates to open while nothing else is done: what might serve before still may, also on a pod that is new."""
    shut = [pod for pod in facts.pods if not pod.deleting and not (pod.gate and pod.gate.open)]
    wanted = [(pod, _gate(terms, facts, pod)) for pod in shut]
    return tuple(SetGate(pod.name, pod.uid, gate) for pod, gate in wanted if gate is not None and gate.open)


def _gate(terms: Terms, facts: Facts, pod: Pod) -> Gate | None:
    if terms.mode == "Disabled":
        return Gate(open=True, reason=Reason.DISABLED, message="spec.parity.mode is Disabled")
    place = place_of(pod)
    state = _proof(terms, facts.verdicts, pod.revision, place) if pod.product else Proof.NONE
    if state is Proof.NONE:
        # a pod without the condition is closed already: nothing to write
        closed = Gate(open=False, reason=Reason.NOT_VERIFIED, message="this revision is not verified here")
        return closed if pod.gate is not None else None
    verdict = _latest(terms, tuple(v for v in facts.verdicts if place_of(v) == place), pod.revision)
    numbers = said(verdict) if verdict else ""
    if state is Proof.FAILED:
        return Gate(open=_serves(terms, state), reason=Reason.PARITY_FAILED, message=numbers)
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


def _counts(terms: Terms, verdict: Verdict) -> bool:
    # a failure holds until a person asks for another try, which an annotation that is gone does not; a pass holds
    return verdict.passed or terms.retry in ("", verdict.retry)


def _current(model: Model, job: Job) -> bool:
    return (
        model.retry in ("", job.annotations.get(naming.RETRY, ""))
        and job.annotations.get(naming.THRESHOLDS, "") == model.thresholds
    )


def _over(job: Job) -> bool:
    return job.finished or any(pod.ended for pod in job.pods)


def _order(job: Job) -> tuple[object, int]:
    return job.created, _attempt(job)


def _attempt(job: Job) -> int:
    number = job.name.rpartition("-")[2]
    return int(number) if number.isdigit() else 0


def _place(job: Job) -> Place:
    asked = observed.parsed(job.annotations.get(naming.BINDING, ""))
    return Place(str(asked.get("product", "")), str(asked.get("imageID", "")))


def _bound(facts: Facts, revision: Revision, job: Job) -> bool:
    """Whether the pod that the Job was made for is still the same, down to its containers."""
    asked = observed.parsed(job.annotations.get(naming.BINDING, ""))
    live = next((pod for pod in facts.pods if pod.uid == asked.get("uid") and not pod.deleting), None)
    return live is not None and asked == parity_job.binding(live, revision.hash)


def _obsolete(model: Model, facts: Facts, revision: Revision | None, job: Job) -> bool:
    if job.deleting or _over(job):
        return False
    if model.spec.suspend or model.spec.parity.mode == "Disabled":
        return True
    return revision is None or not _current(model, job) or not _bound(facts, revision, job)


def _accepted(model: Model, facts: Facts, revision: Revision, job: Job) -> Json | None:
    """Return the verdict that the Job has left, if it speaks of exactly this revision and of a pod that is still the same."""
    pod = next((pod for pod in job.pods if pod.ended), None)
    if pod is None or pod.ended is None or not _current(model, job) or _why(facts, revision, job):
        return None
    report = pod.ended.report()
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
        "ranAt": observed.spelled(pod.ended.finished_at or facts.now),
    }


def _why(facts: Facts, revision: Revision, job: Job) -> str:
    """Say why a finished Job has proved nothing, or nothing if it has."""
    pod = next((pod for pod in job.pods if pod.ended), None)
    if pod is None or pod.ended is None:
        return f"Job {job.name} ended without a report{': ' if job.message else ''}{job.message}"
    report = pod.ended.report()
    result = report.get("result")
    if result not in ("Passed", "Failed"):
        said = report.get("message") or pod.ended.message.strip()[-300:] or f"exit code {pod.ended.exit_code}"
        return f"Job {job.name} could not compare: {said}"
    pinned = revision.pinned["artifact"]
    if report.get("artifact") != pinned["digest"] or report.get("reference") != pinned["reference"]:
        return f"Job {job.name} compared with another artifact or reference than the revision's"
    if report.get("binding") != observed.parsed(job.annotations.get(naming.BINDING, "")) or not _bound(
        facts, revision, job
    ):
        return f"the pod that Job {job.name} compared has changed since"
    return ""
