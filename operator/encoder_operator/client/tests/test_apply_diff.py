from __future__ import annotations

import copy

import pytest

from encoder_operator.client import apply_diff
from encoder_operator.revisions.hashing import Json
from encoder_operator.tests.fake_cluster import _applied

MANIFEST: Json = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "m", "namespace": "n", "labels": {"a": "b"}},
    "spec": {
        "replicas": 0,
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "c",
                        "env": [{"name": "A", "value": "1"}, {"name": "EMPTY", "value": ""}],
                        "resources": {"limits": {"memory": "1024Mi", "cpu": "1000m"}},
                        "args": ["x", "y"],
                    }
                ],
                "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "shm", "emptyDir": {"sizeLimit": "1024Mi"}}],
            }
        },
    },
}


def live() -> Json:
    return _applied(None, MANIFEST)


def container(found: Json) -> Json:
    first: Json = found["spec"]["template"]["spec"]["containers"][0]
    return first


def test_what_was_applied_matches() -> None:
    assert apply_diff.is_up_to_date(MANIFEST, live())


def test_a_missing_object_does_not_match() -> None:
    assert not apply_diff.is_up_to_date(MANIFEST, None)


def test_an_object_of_another_manager_differs() -> None:
    assert not apply_diff.is_up_to_date(MANIFEST, {"metadata": {"name": "m"}, "spec": MANIFEST["spec"]})


def test_the_api_servers_own_spelling_and_defaults_match() -> None:
    found = live()
    container(found)["resources"]["limits"] = {"memory": "1Gi", "cpu": "1"}
    container(found)["terminationMessagePath"] = "/dev/termination-log"
    del container(found)["env"][1]["value"]
    found["spec"]["template"]["spec"]["volumes"][1]["emptyDir"]["sizeLimit"] = "1Gi"
    found["status"] = {"replicas": 3}
    assert apply_diff.is_up_to_date(MANIFEST, found)


@pytest.mark.complaint(24)
def test_fields_of_others_are_left_alone() -> None:
    found = live()
    found["metadata"]["annotations"] = {"by": "another"}
    container(found)["env"].append({"name": "INJECTED", "value": "1"})
    found["spec"]["template"]["spec"]["containers"].append({"name": "sidecar"})
    assert apply_diff.is_up_to_date(MANIFEST, found)


def test_a_changed_field_of_ours_does_not_match() -> None:
    found = live()
    container(found)["args"] = ["x"]
    assert not apply_diff.is_up_to_date(MANIFEST, found)


def test_a_field_that_we_no_longer_want_does_not_match() -> None:
    wanted = copy.deepcopy(MANIFEST)
    del container(wanted)["env"][0]
    assert not apply_diff.is_up_to_date(wanted, live())


def test_a_removed_field_differs() -> None:
    found = live()
    del container(found)["env"][0]
    assert not apply_diff.is_up_to_date(MANIFEST, found)
