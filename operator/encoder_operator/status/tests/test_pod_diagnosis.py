"""What keeps a pod from running, by its status; the scheduler's sentences are those of real schedulers."""

import json
from dataclasses import replace
from typing import Any

import pytest

from encoder_operator.state.observed import Pod, Termination, parse_pod
from encoder_operator.status import pod_diagnosis
from encoder_operator.status.reasons import Reason

SENTENCES = {
    "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. no new claims to deallocate, preemption: 0/1 nodes are available: "
    "1 No preemption victims found for incoming pod.": Reason.INSUFFICIENT_GPU,
    "0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient nvidia.com/mig-1g.5gb.": Reason.INSUFFICIENT_GPU,
    "0/2 nodes are available: 2 cannot allocate all claims. still not schedulable, preemption: 0/2 nodes are available: 2 Preemption "
    "is not helpful for scheduling.": Reason.INSUFFICIENT_GPU,
    "0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind. no new claims to deallocate, preemption: "
    "0/1 nodes are available: 1 Preemption is not helpful for scheduling.": Reason.CLAIM_PENDING,
    "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.": Reason.CLAIM_PENDING,
    '0/1 nodes are available: persistentvolumeclaim "artifacts" not found.': Reason.CLAIM_MISSING,
    "0/1 nodes are available: 1 Insufficient memory.": Reason.UNSCHEDULABLE,
    '0/1 nodes are available: persistentvolumeclaim "artifacts" is being deleted.': Reason.UNSCHEDULABLE,
    '0/1 nodes are available: resourceclaim "gpu" not found.': Reason.UNSCHEDULABLE,
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_scheduler_messages_map_to_reasons(sentence: str) -> None:
    assert pod_diagnosis._unschedulable(sentence) is SENTENCES[sentence]


def pod(**fields: Any) -> Pod:
    found = parse_pod(
        {"metadata": {"name": "p", "uid": "u"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Pending"}}
    )
    return replace(found, **fields)


def ended(code: int, message: str = "", reason: str = "Error") -> Termination:
    return Termination(exit_code=code, reason=reason, message=message, finished_at=None)


CRASHED = {"waiting_reason": "CrashLoopBackOff", "waiting_message": "back-off 10s restarting failed container"}


@pytest.mark.parametrize(
    ("fields", "reason", "message"),
    [
        (
            {"node_problem": "is not ready", "unschedulable": "0/1 nodes"},
            Reason.NODE_LOST,
            "Pod p is on node n1, which is not ready; a replacement pod starts when Kubernetes has evicted this one",
        ),
        ({"unschedulable": "1 Insufficient cpu"}, Reason.UNSCHEDULABLE, "1 Insufficient cpu"),
        ({"waiting_reason": "ErrImagePull"}, Reason.IMAGE_PULL_FAILED, "ErrImagePull"),
        ({"waiting_reason": "ErrImagePull", "waiting_message": "not found"}, Reason.IMAGE_PULL_FAILED, "not found"),
        ({"waiting_reason": "SignatureValidationFailed"}, Reason.IMAGE_PULL_FAILED, "SignatureValidationFailed"),
        (
            {"waiting_reason": "RunContainerError", "waiting_container": "log"},
            Reason.CRASH_LOOP,
            "Pod p cannot create its container log",
        ),
        (
            {"waiting_reason": "CreateContainerError", "waiting_message": "no such device"},
            Reason.CRASH_LOOP,
            "Pod p cannot create its container: no such device",
        ),
        (
            {"creation_problem": "no runtime for class kata"},
            Reason.CRASH_LOOP,
            "Pod p cannot be created on node n1: no runtime for class kata",
        ),
        (
            {"waiting_reason": "CreateContainerConfigError", "waiting_message": 'Secret "hub" not found'},
            Reason.TOKEN_SECRET_MISSING,
            'Secret "hub" not found',
        ),
        (
            {"waiting_reason": "CreateContainerConfigError", "waiting_message": "no subPath"},
            Reason.VOLUME_NOT_MOUNTED,
            "no subPath",
        ),
        ({"mount_problem": "secret hub not found"}, Reason.TOKEN_SECRET_MISSING, "secret hub not found"),
        ({"mount_problem": "timed out"}, Reason.VOLUME_NOT_MOUNTED, "timed out"),
        ({"reason": "Evicted"}, Reason.EVICTED, "Pod p was evicted from node n1"),
        (
            {"reason": "Evicted", "message": "low on memory"},
            Reason.EVICTED,
            "Pod p was evicted from node n1: low on memory",
        ),
        (CRASHED, Reason.CRASH_LOOP, "back-off 10s restarting failed container"),
        (CRASHED | {"last_terminated": ended(3)}, Reason.CRASH_LOOP, "Pod p exited with code 3"),
        (
            CRASHED | {"last_terminated": ended(3, "first\n" + "x" * 301 + "\n")},
            Reason.CRASH_LOOP,
            f"Pod p exited with code 3: {'x' * 300}",
        ),
        (
            {"terminated": ended(3, json.dumps({"message": "no GPU"})), "last_terminated": ended(4)},
            Reason.CRASH_LOOP,
            "Pod p exited with code 3: no GPU",
        ),
        # another container of the pod waits to be restarted, whatever the main one has done
        (
            CRASHED | {"waiting_container": "log", "terminated": ended(3), "last_terminated": ended(4)},
            Reason.CRASH_LOOP,
            "Container log of pod p exited with code 4",
        ),
        ({"terminated": ended(137, reason="OOMKilled")}, Reason.OUT_OF_MEMORY, "Pod p exceeded its memory limit"),
    ],
)
def test_a_pod_that_does_not_run_has_a_reason(fields: dict[str, Any], reason: Reason, message: str) -> None:
    assert pod_diagnosis.diagnose(pod(**fields)) == (reason, message)


@pytest.mark.parametrize(
    "fields",
    [{}, {"waiting_reason": "ContainerCreating"}, {"terminated": ended(0)}, {"last_terminated": ended(1)}],
    ids=["pending", "creating", "succeeded", "running again"],
)
def test_a_pod_that_starts_or_has_ended_well_has_no_problem(fields: dict[str, Any]) -> None:
    assert pod_diagnosis.diagnose(pod(**fields)) is None
