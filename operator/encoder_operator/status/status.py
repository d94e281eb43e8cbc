"""Compute the status of an EncoderModel from the observed state and the plan.

Each condition is computed on its own, and `Ready` summarizes Available, UpToDate and Verified. lastTransitionTime is
taken over from the previous status unless the condition's status has changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from encoder_operator import naming
from encoder_operator.client.errors import ApiServerError
from encoder_operator.planner import automatic_update, networking, rollout
from encoder_operator.planner.artifact import ArtifactPlan
from encoder_operator.planner.rollout import RolloutPlan
from encoder_operator.planner.verification import (
    VerificationPlan,
    VerificationState,
    latest_verdict,
    platform_of,
    verdict_message,
    verification_state,
)
from encoder_operator.resources import service
from encoder_operator.revisions.hashing import Json
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import ObservedState, Pod, Revision, Verdict, format_time, parse_time
from encoder_operator.status import condition_values, pod_diagnosis, workload
from encoder_operator.status.condition_values import MESSAGE_LIMIT, ConditionValue
from encoder_operator.status.conditions import CONDITIONS
from encoder_operator.status.events import WARNING_REASONS
from encoder_operator.status.messages import plural
from encoder_operator.status.reasons import Reason
from encoder_operator.validation.errors import NotAccepted

_PROGRESS_SECONDS = 10.0
# status and message of the conditions that say nothing about a spec that was not accepted
_WITHOUT_ACCEPTANCE = {
    "ArtifactReady": (False, "No artifact is prepared before the spec is accepted"),
    "Verified": (None, "Nothing is compared before the spec is accepted"),
    "UpToDate": (False, "The spec is not applied before it is accepted"),
    "Progressing": (False, "The operator waits for a change of the spec"),
    "Degraded": (True, "The spec is not accepted: see condition Accepted"),
    "UpdateAvailable": (False, "Defaults are not compared before the spec is accepted"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusInputs:
    """Everything that the status is computed from."""

    model: EncoderModel
    observed: ObservedState
    artifact_plan: ArtifactPlan
    target: Revision | None
    verification: VerificationPlan | None
    rollout: RolloutPlan
    available_update: str | None
    # objects that would change if the model were not paused
    held_back: tuple[str, ...] = ()

    @property
    def active(self) -> Revision | None:
        """Return the active revision."""
        return self.rollout.active

    @property
    def desired_replicas(self) -> int:
        """Return the number of pods that the spec requests."""
        return 0 if self.model.spec.suspend else self.model.spec.serving.replicas

    @property
    def ready(self) -> tuple[Pod, ...]:
        """Return the ready pods of the active revision."""
        return rollout.ready_pods(self.observed, self.active)

    @property
    def target_problem(self) -> pod_diagnosis.Problem | None:
        """Return the first problem that keeps pods of the target revision, or of the one deployed instead, from running."""
        return self._problem(self.target, self.rollout.deployed)

    @property
    def serving_problem(self) -> pod_diagnosis.Problem | None:
        """Return the first problem of any pod that should serve. A starting candidate must not hide a failing active revision."""
        return self._problem(self.target, self.rollout.deployed, self.active)

    def _problem(self, *revisions: Revision | None) -> pod_diagnosis.Problem | None:
        found = (
            problem for revision in dict.fromkeys(r.hash for r in revisions if r) if (problem := self._of(revision))
        )
        first = next(found, None)
        refused = self.observed.deployment.replica_failure if self.observed.deployment else ""
        return pod_diagnosis.Problem(Reason.PODS_REFUSED, refused) if refused and first is None else first

    def _of(self, revision: str) -> pod_diagnosis.Problem | None:
        pods = [pod for pod in self.observed.pods if pod.revision == revision and not pod.deleting]
        living = next(
            (found for pod in pods if pod.alive and not pod.ready and (found := pod_diagnosis.diagnose(pod))), None
        )
        if living is not None or any(pod.ready for pod in pods):
            return living
        # a terminated pod remains as an object; only an eviction explains why no pod is ready
        return next((pod_diagnosis.diagnose(pod) for pod in pods if pod.reason == "Evicted"), None)

    def verdict(self, of: Revision | None) -> Verdict | None:
        """Return the verdict to report for a revision."""
        return latest_verdict(self.model, self.observed.verdicts, of.hash) if of else None


def build_status(inputs: StatusInputs) -> Json:
    """Return the complete status."""
    conditions = _conditions(inputs)
    candidate = inputs.target if inputs.target and inputs.target != inputs.active else None
    shown = inputs.active or candidate
    pods = [pod for pod in inputs.observed.pods if pod.alive and not pod.deleting]
    ready, desired = sum(pod.ready for pod in pods), inputs.desired_replicas
    found: Json = {
        "phase": _phase(inputs, conditions),
        "endpoint": _endpoint(inputs),
        "ready": f"{ready}/{desired}",
        "replicas": len(pods),
        "readyReplicas": ready,
        "desiredReplicas": desired,
        "selector": f"{naming.MODEL}={inputs.model.name},{naming.COMPONENT}=serving",
        "license": inputs.model.plugin.licence_note,
        "artifact": _artifact(inputs),
        "prepJob": workload.newest_job(inputs.observed.prep_jobs, inputs.artifact_plan.actions),
        "activeRevision": inputs.active and inputs.active.hash,
        "candidateRevision": candidate and candidate.hash,
        "engine": workload.engine(shown, inputs.observed, inputs.verdict(shown)),
        "parityJob": workload.newest_job(
            inputs.observed.parity_jobs, inputs.verification.actions if inputs.verification else ()
        ),
        "parity": _parity(inputs.verdict(inputs.active)),
        "candidateParity": _parity(inputs.verdict(candidate)),
    }
    return _assemble(found, conditions, inputs.model.status, inputs.model.generation, inputs.observed)


def _endpoint(inputs: StatusInputs) -> str | None:
    """Return the URL of the model. While it is paused, the Service is as it was before, or does not exist."""
    if not inputs.model.spec.paused:
        return service.endpoint(inputs.model)
    ports = ((inputs.observed.service or {}).get("spec") or {}).get("ports") or []
    return service.endpoint(inputs.model, ports[0]["port"]) if ports else None


def not_accepted_status(live: Json, error: NotAccepted, observed: ObservedState) -> Json:
    """Return the status of an EncoderModel that was not accepted. Pods that serve keep serving and are still counted."""
    old = live.get("status", {})
    active = old.get("activeRevision")
    ready = [pod for pod in observed.pods if pod.ready and not pod.deleting]
    serving = (
        ConditionValue(
            True,
            Reason.SERVING,
            f"{plural(len(ready), 'pod')} of an earlier spec {'is' if len(ready) == 1 else 'are'} ready",
        )
        if ready
        else ConditionValue(False, Reason.NOT_ACCEPTED, "No pod is ready")
    )
    conditions = {
        name: ConditionValue(status, Reason.NOT_ACCEPTED, message)
        for name, (status, message) in _WITHOUT_ACCEPTANCE.items()
    } | {
        "Accepted": ConditionValue(False, error.reason, error.message),
        "Available": serving,
        "Ready": ConditionValue(False, error.reason, error.message),
    }
    kept = {key: old.get(key) for key in ("endpoint", "selector", "license", "artifact", "engine", "parity")}
    found = kept | {
        "phase": "Degraded" if ready else "Failed",
        "ready": f"{len(ready)}/{old.get('desiredReplicas', 0)}",
        "desiredReplicas": old.get("desiredReplicas", 0),
        "replicas": sum(pod.alive and not pod.deleting for pod in observed.pods),
        "readyReplicas": len(ready),
        "activeRevision": active,
    }
    return _assemble(found, conditions, old, live["metadata"].get("generation", 0), observed)


def status_on_api_error(
    status: Json, old: Json, error: ApiServerError, now: datetime, *, preparation: bool = False
) -> Json:
    """Return a status that reports, besides everything else, a request that the API server rejected.

    Args:
        status: The status that was planned; it assumes that all writes have succeeded.
        old: The status before.
        error: The rejection.
        now: Current time.
        preparation: Whether the rejected write kept the prep Job from being created.
    """
    before = {entry["type"]: entry for entry in old.get("conditions", [])}
    # an EncoderModel that has never been reconciled has no conditions
    listed = status.get("conditions") or [{"type": name} for name in ("Progressing", "Degraded")]
    planned = {entry["type"]: entry for entry in listed}
    reported = ["Progressing", "Degraded", *(("ArtifactReady", "UpToDate") if preparation else ())]
    if _waits_for_nothing_else(status, planned):
        reported.append("Ready")

    def with_error(entry: Json) -> Json:
        if entry["type"] not in reported:
            return entry
        spelling = str(entry["type"] == "Degraded")
        previous = before.get(entry["type"], {})
        since = previous.get("lastTransitionTime") if previous.get("status") == spelling else None
        return entry | {
            "status": spelling,
            "reason": Reason.WRITE_REFUSED.value,
            # UpToDate refers to ArtifactReady
            "message": entry["message"] if entry["type"] == "UpToDate" else str(error)[:MESSAGE_LIMIT],
            "lastTransitionTime": since or format_time(now),
        }

    found = status | {"conditions": [with_error(entry) for entry in listed]}
    if status.get("phase") != "Suspended":
        found["phase"] = "Degraded" if planned.get("Available", {}).get("status") == "True" else "Failed"
    # the planned ones may not exist
    jobs = {name: old[name] for name in ("prepJob", "parityJob") if name in old}
    return {name: value for name, value in found.items() if name not in ("prepJob", "parityJob")} | jobs


def _waits_for_nothing_else(status: Json, planned: dict[str, Json]) -> bool:
    """Return whether a rejected request is what keeps a model from being ready, and not a problem that was known before."""
    ready, degraded = planned.get("Ready"), planned.get("Degraded", {})
    known = degraded.get("status") == "True" and degraded.get("reason") != Reason.WRITE_REFUSED
    return bool(ready and ready["status"] != "True" and not known and status.get("phase") != "Suspended")


def waiting_for_deletion_status(model: EncoderModel, observed: ObservedState) -> Json:
    """Return the status while children of a deleted EncoderModel of the same name still exist."""
    what = f"Waiting for the deletion of children of a previous EncoderModel with this name: {', '.join(observed.stale_children[:3])}"
    no = ConditionValue(False, Reason.WAITING_FOR_DELETION, what)
    conditions = {name: no for name in CONDITIONS} | {
        "Verified": no._replace(is_true=None),
        "Accepted": ConditionValue(True, Reason.ACCEPTED, "Spec is valid"),
        "Progressing": ConditionValue(True, Reason.WAITING_FOR_DELETION, what),
    }
    found: Json = {"phase": "Pending", "replicas": 0, "readyReplicas": 0, "license": model.plugin.licence_note}
    return _assemble(found, conditions, model.status, model.generation, observed)


def _conditions(inputs: StatusInputs) -> dict[str, ConditionValue]:
    found = {
        "Accepted": _accepted(inputs.model),
        "ArtifactReady": ConditionValue(
            inputs.artifact_plan.artifact is not None, inputs.artifact_plan.reason, inputs.artifact_plan.message
        ),
        "Verified": _verified(inputs),
        "Available": _available(inputs),
        "UpToDate": _up_to_date(inputs),
        "Progressing": _progressing(inputs),
        "Degraded": _degraded(inputs),
        "UpdateAvailable": ConditionValue(
            True,
            Reason.NEW_DEFAULTS,
            f"Newer operator defaults are available: {inputs.available_update}"
            + (", to be rolled out in the update window" if automatic_update.is_automatic(inputs.model) else ""),
        )
        if inputs.available_update
        else ConditionValue(False, Reason.CURRENT, "The revision uses the operator's current defaults"),
    }
    needed = ["Available", "UpToDate"] + (["Verified"] if inputs.model.spec.parity.mode == "Enforce" else [])
    # causes before effects: without an artifact nothing can be verified, and without verification no pod becomes ready
    order = ["ArtifactReady", "Verified", "UpToDate", "Available"]
    missing = next((name for name in order if name in {*needed, "ArtifactReady"} and not found[name].is_true), None)
    idle = found["Available"].reason is Reason.SCALED_TO_ZERO
    if inputs.model.spec.suspend:
        found["Ready"] = ConditionValue(False, Reason.SUSPENDED, "spec.suspend is true")
    elif idle and found["ArtifactReady"].is_true and not inputs.rollout.rejection:
        # without pods nothing is verified or rolled out
        found["Ready"] = found["Available"]
    elif missing is None or (missing == "ArtifactReady" and all(found[name].is_true for name in needed)):
        found["Ready"] = ConditionValue(
            True,
            Reason.READY,
            f"{plural(len(inputs.ready), 'pod')} of revision {inputs.ready[0].revision} {'serves' if len(inputs.ready) == 1 else 'serve'} traffic",
        )
    else:
        found["Ready"] = found[missing]
    return found


def _accepted(model: EncoderModel) -> ConditionValue:
    if model.spec.serving.trust_remote_code or model.prep_trusts_remote_code:
        what = "Spec is valid; trustRemoteCode lets the pods run code from the checkpoint's repository"
        return ConditionValue(True, Reason.REMOTE_CODE_TRUSTED, what)
    return ConditionValue(True, Reason.ACCEPTED, "Spec is valid")


def _verified(inputs: StatusInputs) -> ConditionValue:
    about = inputs.active or inputs.target
    if inputs.model.spec.parity.mode == "Disabled":
        return ConditionValue(None, Reason.DISABLED, "Parity checks are disabled because spec.parity.mode is Disabled")
    verdict = inputs.verdict(about)
    if about is not None and verdict is not None:
        state = verification_state(inputs.model, inputs.observed, about.hash, platform_of(verdict))
        if state is not VerificationState.STALE:
            reason = Reason.PARITY_PASSED if verdict.passed else Reason.PARITY_FAILED
            return ConditionValue(verdict.passed, reason, verdict_message(verdict))
    if inputs.verification is not None and about is not None and about == inputs.target:
        if inputs.verification.inconclusive:
            return ConditionValue(
                None, Reason.INCONCLUSIVE, f"{inputs.verification.inconclusive}; the parity check will be retried"
            )
        if inputs.verification.running:
            return ConditionValue(None, Reason.PARITY_RUNNING, inputs.verification.running)
        return ConditionValue(None, Reason.PARITY_PENDING, "The parity check starts when the engine of a pod is ready")
    return ConditionValue(None, Reason.NOT_VERIFIED, "There is no revision to verify yet")


def _available(inputs: StatusInputs) -> ConditionValue:
    ready, wanted = inputs.ready, inputs.model.spec.serving.replicas
    if ready:
        return ConditionValue(
            True,
            Reason.SERVING,
            f"{len(ready)} of {plural(wanted, 'pod')} of revision {ready[0].revision} {'is' if wanted == 1 else 'are'} ready",
        )
    if inputs.model.spec.suspend:
        return ConditionValue(False, Reason.SUSPENDED, "spec.suspend is true")
    if wanted == 0:
        return ConditionValue(False, Reason.SCALED_TO_ZERO, "spec.serving.replicas is 0")
    if inputs.rollout.rejection and inputs.active is None:
        return ConditionValue(False, *inputs.rollout.rejection)
    if inputs.serving_problem is not None:
        return ConditionValue(False, *inputs.serving_problem)
    beside = inputs.verification.other if inputs.verification else None
    why = f": {beside.message}" if beside and beside.message else ""
    return ConditionValue(False, Reason.NO_READY_PODS, f"No pod of a verified revision is ready{why}")


def _up_to_date(inputs: StatusInputs) -> ConditionValue:
    target = inputs.target
    if target is None:
        return ConditionValue(
            False,
            inputs.artifact_plan.reason,
            "No revision exists for the current spec yet: see condition ArtifactReady",
        )
    if inputs.rollout.rejection:
        return ConditionValue(False, *inputs.rollout.rejection)
    if inputs.active != target:
        verified = inputs.verification
        why = (verified.inconclusive or verified.running) if verified else ""
        reason = Reason.INCONCLUSIVE if verified and verified.inconclusive else Reason.ROLLOUT_IN_PROGRESS
        return ConditionValue(False, reason, why or f"Revision {target.hash} is not verified yet")
    old = [pod for pod in inputs.observed.pods if pod.ready and not pod.deleting and pod.revision != target.hash]
    if old:
        return ConditionValue(
            False,
            Reason.ROLLOUT_IN_PROGRESS,
            f"{plural(len(old), 'pod')} of the previous revision still {'serves' if len(old) == 1 else 'serve'} traffic",
        )
    if inputs.held_back:
        what = f"spec.paused is true, so these objects are not updated: {', '.join(inputs.held_back)}"
        return ConditionValue(False, Reason.PAUSED, what)
    return ConditionValue(True, Reason.CURRENT, f"Revision {target.hash} matches the current spec")


def _progressing(inputs: StatusInputs) -> ConditionValue:
    if inputs.model.spec.paused:
        return ConditionValue(False, Reason.PAUSED, "Nothing is changed because spec.paused is true")
    if inputs.model.spec.suspend:
        return ConditionValue(False, Reason.SUSPENDED, "spec.suspend is true")
    if inputs.artifact_plan.artifact is None:
        stuck = inputs.artifact_plan.reason is not Reason.PREPARING
        return ConditionValue(not stuck, inputs.artifact_plan.reason, inputs.artifact_plan.message)
    if inputs.target_problem is not None:
        return ConditionValue(False, *inputs.target_problem)
    if inputs.verification is not None and inputs.verification.other and not inputs.ready:
        return ConditionValue(True, *inputs.verification.other)
    if inputs.rollout.rejection:
        waits = "Change the spec or set the annotation encoders.dev/retry to a new value to retry"
        return ConditionValue(False, inputs.rollout.rejection.reason, waits)
    if inputs.verification is not None and (inputs.verification.running or inputs.verification.inconclusive):
        about = inputs.verification.running or inputs.verification.inconclusive
        reason = Reason.INCONCLUSIVE if inputs.verification.inconclusive else Reason.PARITY_RUNNING
        return ConditionValue(True, reason, about)
    if inputs.model.spec.serving.replicas == 0 and not inputs.observed.pods and inputs.active != inputs.target:
        return ConditionValue(False, Reason.SCALED_TO_ZERO, "spec.serving.replicas is 0")
    wanted = inputs.rollout.replicas
    if len(inputs.ready) < wanted or inputs.active != inputs.target:
        return ConditionValue(
            True,
            Reason.STARTING,
            f"{len(inputs.ready)} of {plural(wanted, 'pod')} {'is' if wanted == 1 else 'are'} ready",
        )
    return ConditionValue(False, Reason.IDLE, "All resources are up to date")


def _degraded(inputs: StatusInputs) -> ConditionValue:
    wanted = [found.hash for found in (inputs.active, inputs.target) if found]
    failed = [
        verdict
        for revision in wanted
        for verdict in inputs.observed.verdicts
        if verdict.revision == revision
        and verification_state(inputs.model, inputs.observed, revision, platform_of(verdict))
        is VerificationState.FAILED
        and not verdict.passed
    ]
    if failed and inputs.model.spec.parity.mode != "Disabled":
        return ConditionValue(True, Reason.PARITY_FAILED, verdict_message(failed[-1]))
    if inputs.rollout.rejection and inputs.rollout.rejection.reason is not Reason.PARITY_FAILED:
        return ConditionValue(True, *inputs.rollout.rejection)
    if inputs.artifact_plan.failed:
        return ConditionValue(True, inputs.artifact_plan.reason, inputs.artifact_plan.message)
    # before the problem of the pods, which may follow from it
    if inputs.rollout.foreign_fields:
        named = ", ".join(inputs.rollout.foreign_fields)
        what = f"Deployment {inputs.model.name} has fields that another client has set: {named}"
        return ConditionValue(True, Reason.FOREIGN_FIELD, what)
    if inputs.serving_problem is not None and inputs.serving_problem.reason in WARNING_REASONS:
        return ConditionValue(True, *inputs.serving_problem)
    if networking.gateway_api_missing(inputs.model, inputs.observed):
        return ConditionValue(
            True, Reason.GATEWAY_API_MISSING, "spec.network.httpRoute is set, but the cluster does not serve HTTPRoutes"
        )
    return ConditionValue(False, Reason.AS_EXPECTED, "No problems detected")


def _phase(inputs: StatusInputs, conditions: dict[str, ConditionValue]) -> str:
    serving = conditions["Available"].is_true
    if inputs.model.spec.suspend:
        return "Suspended"
    if conditions["Degraded"].is_true:
        return "Degraded" if serving else "Failed"
    if serving:
        # a paused model is not rolled out, whatever differs from its spec
        waits = inputs.model.spec.paused
        return "Serving" if conditions["UpToDate"].is_true or waits else "RollingOut"
    if inputs.artifact_plan.artifact is None:
        return "Preparing" if inputs.artifact_plan.reason is Reason.PREPARING else "Pending"
    if inputs.model.spec.serving.replicas == 0:
        # scaled to zero by the user
        return "Suspended"
    return "Pending" if conditions["Verified"].is_true else "Verifying"


def _artifact(inputs: StatusInputs) -> Json | None:
    found = inputs.artifact_plan.artifact
    if found is None:
        progress = _progress(inputs)
        return progress and {"key": inputs.artifact_plan.key, "progress": progress}
    return {
        "key": found.key,
        "resolvedRevision": found.revision,
        **({"parameters": found.parameters} if found.parameters else {}),
        **({"labelSets": _label_sets(found.label_sets)} if found.label_sets else {}),
        "digest": found.digest,
        "bytes": found.bytes,
    }


def _label_sets(checksums: Json) -> list[Json]:
    return [{"name": name, "sha256": checksum} for name, checksum in sorted(checksums.items())]


def _progress(inputs: StatusInputs) -> Json | None:
    """Return the progress of the preparation. The previous value is kept for a while, to limit the number of writes."""
    progress, previous = inputs.artifact_plan.progress, inputs.model.status.get("artifact", {}).get("progress")
    if not progress:
        return None
    at = parse_time(progress.get("at")) or inputs.observed.now
    # both times come from the log of the prep Job
    if previous and inputs.model.status["artifact"].get("key") == inputs.artifact_plan.key:
        since = parse_time(previous.get("at"))
        if since and 0 <= (at - since).total_seconds() < _PROGRESS_SECONDS:
            return dict(previous)
    named = {
        key: progress[key] for key in ("phase", "bytes", "total", "bytesPerSecond") if progress.get(key) is not None
    }
    return named | {"at": format_time(at)}


def _parity(verdict: Verdict | None) -> Json | None:
    if verdict is None:
        return None
    data = verdict.data
    return {
        "result": data["result"],
        "revision": verdict.revision,
        "accelerator": verdict.product,
        "metrics": [{k: m[k] for k in ("name", "value", "threshold") if m.get(k) is not None} for m in data["metrics"]],
        "cases": data["cases"],
        "ranAt": data["ranAt"],
    }


def _assemble(
    found: Json, conditions: dict[str, ConditionValue], old: Json, generation: int, observed: ObservedState
) -> Json:
    listed = condition_values.to_json(conditions, old, generation, observed.now)
    status = {key: value for key, value in found.items() if value is not None}
    return {"observedGeneration": generation} | status | {"conditions": listed}
