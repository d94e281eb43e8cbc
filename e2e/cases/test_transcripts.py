"""docs/transcripts.md: what kubectl shows of a model from apply to Ready, of a failed update, and of a paused one.

`ENCODER_TRANSCRIPTS=write` writes the page; otherwise the run must show the same facts as the committed page.
"""

import json
import os

import pytest

from encoder_platform import kubectl_plugin, transcripts
from encoder_platform.space import Space
from encoder_platform.transcripts import PAGE, Command, Recorder

OTHER_POOLING = ["--pooler-config", json.dumps({"seq_pooling_type": "CLS"})]


@pytest.mark.soak
def test_what_kubectl_shows(space: Space) -> None:
    recorder = Recorder(space.kube, space.name)
    sections: dict[str, list[Command]] = {}

    space.apply_model()
    space.wait_condition("ArtifactReady", "Preparing", seconds=60)
    sections["While the checkpoint is prepared"] = [recorder.run("get", "em")]
    model = space.wait_ready()
    sections["Ready"] = [*recorder.overview(), *recorder.logs(model)]
    # the names of the Jobs in the status lead to their logs
    prep, parity = sections["Ready"][-2:]
    assert '"code": "Prepared"' in prep.output
    assert '"result": "Passed"' in parity.output
    for of, wanted in (("prep", '"code": "Prepared"'), ("parity", '"result": "Passed"'), ("serve", "[pod/")):
        code, logs = kubectl_plugin.run(space.kube, space.name, "logs", "minilm", of)
        assert (code, wanted in logs) == (0, True), logs

    active = model["status"]["activeRevision"]
    space.patch_serving({"args": OTHER_POOLING})
    space.wait_condition("UpToDate", "ParityFailed")
    failed = space.model()
    sections["A failed update"] = [*recorder.overview(), *recorder.logs(failed)[1:]]
    assert failed["status"]["activeRevision"] == active
    assert failed["status"]["ready"] == "1/1"
    assert '"result": "Failed"' in sections["A failed update"][-1].output

    space.patch({"paused": True, "serving": {"args": [], "replicas": 2}})
    space.wait_condition("Progressing", "Paused")
    sections["Paused"] = recorder.overview()

    found = transcripts.page(sections, by="`e2e/cases/test_transcripts.py`", where="on the node of `e2e/node`")
    # no name of this run's namespace is left
    assert space.name not in found
    if os.environ.get("ENCODER_TRANSCRIPTS") == "write":
        PAGE.write_text(found, encoding="utf-8")
    assert transcripts.facts(found) == transcripts.facts(PAGE.read_text("utf-8"))
