"""What is planned while the ConfigMaps of label sets are missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from encoder_operator import naming
from encoder_operator.planner import artifact
from encoder_operator.planner.tests.prep_states import CLAIM, NOW, ended, job, kinds, pod, with_artifact
from encoder_operator.resources import prep_job
from encoder_operator.revisions import revision
from encoder_operator.state.observed import Job, ObservedState, Pod
from encoder_operator.status.reasons import Reason
from encoder_operator.tests import harness
from encoder_operator.tests.harness import SETTINGS

LABELLED_SETTINGS = SETTINGS.model_copy(
    update={"images": SETTINGS.images.model_copy(update={"prep": {"deberta_gliner_linker": "prep:1"}})}
)
LABELLED = harness.parsed_model(
    {
        "spec.plugin": "deberta_gliner_linker",
        "spec.image": "mine:1",
        "spec.labelSets": [
            {"name": "cities", "sha256": "1" * 64, "configMapRef": {"name": "places"}},
            {"name": "people", "sha256": "2" * 64, "configMapRef": {"name": "people", "key": "all.jsonl"}},
            {"name": "catalogue", "sha256": "3" * 64, "url": "http://web/a.jsonl"},
        ],
    },
    LABELLED_SETTINGS,
)
PLACES = "label set cities needs key labels.jsonl of ConfigMap places, which does not exist in namespace demo"
PEOPLE = "label set people needs key all.jsonl, which ConfigMap people in namespace demo does not have"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"places": None, "people": frozenset({"all.jsonl"})}, PLACES),
        ({"places": frozenset({"labels.jsonl"}), "people": frozenset({"labels.jsonl"})}, PEOPLE),
        ({"places": None, "people": frozenset()}, f"{PLACES}; {PEOPLE}"),
    ],
)
def test_label_sets_whose_config_map_or_key_is_missing_are_named(keys: Any, message: str) -> None:
    key = revision.artifact_key(LABELLED)
    seen = ObservedState(now=NOW, pvc=CLAIM, config_map_keys=keys)

    def found(**changes: Any) -> tuple[Reason, str]:
        planned = artifact.plan(LABELLED, replace(seen, **changes), None, SETTINGS)
        if planned.reason is Reason.LABEL_SET_MISSING:
            assert (planned.actions, planned.requeue_after, planned.failed) == ((), 10.0, False)
        return planned.reason, planned.message

    missing = (Reason.LABEL_SET_MISSING, f"spec.labelSets: {message}")
    # whether or not there is a slot
    assert found() == found(prep_wait_reason="wait for others") == missing

    def of(*pods: Pod, **changes: Any) -> tuple[Job, ...]:
        annotations = {naming.INPUTS: prep_job.inputs_hash(LABELLED, key), naming.RETRY: ""}
        return (job(*pods, name=naming.prep_job("minilm", key), annotations=annotations, **changes),)

    mount = 'MountVolume.SetUp failed for volume "label-sets": configmap "places" not found'
    assert found(prep_jobs=of(pod())) == found(prep_jobs=of(pod(mount_problem=mount))) == missing
    # what has nothing to do with it
    assert found(prep_jobs=of(pod(phase="Running")))[0] is Reason.PREPARING
    assert found(prep_jobs=of(pod(unschedulable="0/1 nodes")))[0] is Reason.UNSCHEDULABLE
    assert found(prep_jobs=of(pod(terminated=ended(65)), failed="BackoffLimitExceeded"))[0] is Reason.PREPARATION_FAILED
    # an artifact that is there has the sets
    known = with_artifact(model=LABELLED)
    assert artifact.plan(LABELLED, replace(seen, revisions=(known,)), known, SETTINGS).reason is Reason.PREPARED


def test_label_sets_that_are_there_or_not_looked_up_keep_nothing_waiting() -> None:
    there = {"places": frozenset({"labels.jsonl"}), "people": frozenset({"all.jsonl", "other"})}
    for keys in (there, {}):
        found = artifact.plan(
            LABELLED, ObservedState(now=NOW, pvc=CLAIM, config_map_keys=keys), None, LABELLED_SETTINGS
        )
        assert (found.reason, kinds(found)) == (Reason.PREPARING, ["Job"])
