"""The scheduler's sentences, as real schedulers say them, and the reasons that they are."""

import pytest

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
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_scheduler_messages_map_to_reasons(sentence: str) -> None:
    assert pod_diagnosis._unschedulable(sentence) is SENTENCES[sentence]
