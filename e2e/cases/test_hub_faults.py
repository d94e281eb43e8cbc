"""Case 7: whatever the hub does, an artifact is whole or not there."""

import pytest

from encoder_node.waiting import wait_for
from encoder_platform import manifests
from encoder_platform.kube import condition
from encoder_platform.space import Space

RECOVERS = ("cut", "busy", "error")
FAILS = {"corrupt": "ChecksumMismatch", "stall": "Stalled", "down": "DownloadFailed"}


def visible_artifacts(space: Space) -> list[str]:
    said = space.kube.run(
        "-n", space.name, "exec", "client", "--", "find", "/artifacts", "-maxdepth", "1", "-mindepth", "1"
    )
    return [line for line in said.split() if not line.rsplit("/", 1)[-1].startswith(".")]


@pytest.mark.complaint(1)
@pytest.mark.fault(
    "the hub cuts connections, answers 429 or 500, a few times",
    "`Preparing`",
    "the download goes on where it broke; one Job in all",
)
@pytest.mark.fault(
    "the hub sends wrong bytes, again and again",
    "`ChecksumMismatch`",
    "nothing is published",
)
@pytest.mark.fault(
    "the hub stalls, or is down, until the tries are used up",
    "`Stalled`, `DownloadFailed`",
    "nothing is published; `encoders.dev/retry` tries again",
)
def test_faults_end_in_a_whole_artifact_or_in_a_reason(space: Space) -> None:
    for fault in (*RECOVERS, *FAILS):
        source = {
            "repo": f"{fault}/all-MiniLM-L6-v2",
            "revision": space.platform.hub_revision,
            "endpoint": manifests.HUB_ENDPOINT,
        }
        serving, prepare = {"accelerator": "cpu", "replicas": 0}, {"backoffLimit": 0 if fault in FAILS else 3}
        space.apply_model(fault, source={"huggingFace": source}, serving=serving, prepare=prepare)
    for fault, reason in FAILS.items():
        space.wait_condition("ArtifactReady", reason, fault, seconds=240)
        wait_for(
            f"{fault}: the Job given up",
            lambda fault=fault: space.jobs("prep", fault)[0]["status"].get("failed"),
            seconds=60,
        )
        assert len(space.jobs("prep", fault)) == 1
    keys = set()
    for fault in RECOVERS:
        model = space.wait_current("ArtifactReady", fault, seconds=240)
        keys.add(f"/artifacts/{model['status']['artifact']['key']}")
        assert model["status"]["artifact"]["resolvedRevision"] == space.platform.hub_revision
        assert not space.pods(fault)
    assert set(visible_artifacts(space)) == keys
    assert all(condition(space.model(fault), "Available").get("status") == "False" for fault in FAILS)
