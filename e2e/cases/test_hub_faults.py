"""Case 7: whatever the hub does, an artifact is whole or not there."""

from functools import partial

import pytest

from encoder_node.waiting import wait_for
from encoder_platform import install, manifests
from encoder_platform.kube import condition
from encoder_platform.space import Space

REASONS = {"corrupt": "ChecksumMismatch", "stall": "Stalled", "down": "DownloadFailed"}
HEALED = ("stall", "down")
FAULTS = ("cut", "busy", "error", *REASONS)


def visible_artifacts(space: Space) -> list[str]:
    listing = space.kube.run(
        "-n", space.name, "exec", "client", "--", "find", "/artifacts", "-maxdepth", "1", "-mindepth", "1"
    )
    return [line for line in listing.split() if not line.rsplit("/", 1)[-1].startswith(".")]


@pytest.mark.complaint(1)
@pytest.mark.fault(
    "the hub repeatedly drops connections or responds with 429 or 500",
    "`Preparing`",
    "the download resumes where it stopped, in a single Job",
)
@pytest.mark.fault(
    "the hub repeatedly sends wrong bytes",
    "`ChecksumMismatch`",
    "nothing is published",
)
@pytest.mark.fault(
    "the hub stalls or is down until the last attempt has failed",
    "`Stalled`, `DownloadFailed`",
    "nothing is published; when the hub is available again, `encoders.dev/retry` starts another Job that succeeds",
)
@pytest.mark.soak
def test_faults_end_in_a_whole_artifact_or_in_a_reason(space: Space) -> None:
    recovers = [fault for fault in FAULTS if fault not in REASONS]
    fails, healed = [fault for fault in FAULTS if fault in REASONS], [fault for fault in FAULTS if fault in HEALED]
    # names of this run's own: a fault that was ended stays ended
    repositories = {fault: f"{fault}-{space.name}/all-MiniLM-L6-v2" for fault in FAULTS}
    for fault in FAULTS:
        source = {
            "repo": repositories[fault],
            "revision": space.platform.hub_revision,
            "endpoint": manifests.HUB_ENDPOINT,
        }
        serving, prepare = {"accelerator": "cpu", "replicas": 0}, {"backoffLimit": 0 if fault in fails else 3}
        space.apply_model(fault, source={"huggingFace": source}, serving=serving, prepare=prepare)
    for fault in fails:
        space.wait_condition("ArtifactReady", REASONS[fault], fault)
        wait_for(
            f"{fault}: the Job given up",
            partial(lambda fault: space.jobs("prep", fault)[0]["status"].get("failed"), fault),
            seconds=60,
        )
        assert len(space.jobs("prep", fault)) == 1
    failed = {fault: space.jobs("prep", fault)[0]["metadata"]["uid"] for fault in healed}
    for fault in healed:
        install.hub_heal(space.kube, repositories[fault])
        space.retry("once", fault)
    keys = set()
    for fault in (*recovers, *healed):
        model = space.wait_current("ArtifactReady", fault)
        keys.add(f"/artifacts/{model['status']['artifact']['key']}")
        assert model["status"]["artifact"]["resolvedRevision"] == space.platform.hub_revision
        assert not space.pods(fault)
    assert set(visible_artifacts(space)) == keys
    for fault in healed:
        (job,) = space.jobs("prep", fault)
        assert job["metadata"]["uid"] != failed[fault]
    assert condition(space.model("corrupt"), "ArtifactReady")["reason"] == "ChecksumMismatch"
