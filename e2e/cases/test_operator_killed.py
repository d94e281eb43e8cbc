"""Case 5: the operator dies by SIGKILL after each single write; every next life goes on, and there is one prep Job in all."""

from pathlib import Path

import pytest

from encoder_platform import install
from encoder_platform.kube import JOB
from encoder_platform.operator_process import operator_process, run_one_life
from encoder_platform.space import Space


# e2e/api kills it before and after each write, with pods that start at once
@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.fault(
    "the operator is killed with SIGKILL after each single write",
    "the state before the next write",
    "every next process continues; a single prep Job in total",
)
def test_killed_after_every_write_it_still_converges(space: Space, tmp_path: Path) -> None:
    """Runs the operator on this machine, as the chart's own account, against the real API server."""
    with (
        install.operator_stopped(space.kube),
        space.kube.watching(JOB, space.name, "encoders.dev/component=prep") as jobs,
    ):
        space.apply_model()
        lives = 0
        with operator_process(space.kube, tmp_path, {"ENCODER_CRASH_AFTER_WRITE": "1"}) as operator:
            while run_one_life(operator.start, ready=lambda: space.model().get("status", {}).get("phase") == "Serving"):
                lives += 1
                assert lives < 60, "the operator does not get any further"
        prep_jobs = {job["metadata"]["uid"] for job in jobs}
    assert lives >= 8, "fewer deaths than there are writes on the way to Ready"
    assert len(prep_jobs) == 1
    assert space.wait_current("Ready")["status"]["parity"]["result"] == "Passed"
    assert space.post({"data": {"text": "still here"}}).status == 200
