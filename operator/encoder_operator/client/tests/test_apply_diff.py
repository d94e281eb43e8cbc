from __future__ import annotations

import copy
from typing import Any

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


def test_zeros_that_the_api_server_omits_match_while_they_are_ours() -> None:
    wanted = copy.deepcopy(MANIFEST)
    mount = {"name": "tmp", "mountPath": "/tmp", "readOnly": False}
    probe = {"initialDelaySeconds": 0, "periodSeconds": 5}
    container(wanted).update(readinessProbe=probe, volumeMounts=[mount])
    wanted["spec"]["template"]["metadata"] = {"annotations": {}, "labels": {"a": "b"}}
    found = _applied(None, wanted)
    del found["spec"]["template"]["metadata"]["annotations"]
    del container(found)["readinessProbe"]["initialDelaySeconds"], container(found)["volumeMounts"][0]["readOnly"]
    assert apply_diff.is_up_to_date(wanted, found)
    # another client has set it, which takes the field from us
    taken = copy.deepcopy(found)
    container(taken)["readinessProbe"]["initialDelaySeconds"] = 9
    template = taken["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:template"]["f:spec"]
    del template["f:containers"]['k:{"name": "c"}']["f:readinessProbe"]["f:initialDelaySeconds"]
    assert not apply_diff.is_up_to_date(wanted, taken)
    # nor does what was never applied match
    assert not apply_diff.is_up_to_date(wanted, live())


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


def service(**spec: object) -> Json:
    ports = [{"name": "http", "port": 80, "protocol": "TCP"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "m", "namespace": "n", "labels": {"a": "b"}},
        "spec": {"ports": ports, "type": "ClusterIP", "publishNotReadyAddresses": False, **spec},
    }


def test_defaults_that_the_api_server_omits_or_sets_itself_match() -> None:
    omitted = _applied(None, service())
    del omitted["spec"]["publishNotReadyAddresses"]
    assert apply_diff.is_up_to_date(service(), omitted)
    # as an operator that did not own the fields has applied it
    earlier = _applied(None, {**service(), "spec": {"ports": service()["spec"]["ports"]}})
    earlier["spec"]["type"] = "ClusterIP"
    assert apply_diff.is_up_to_date(service(), earlier)


@pytest.mark.parametrize(("field", "value"), [("publishNotReadyAddresses", True), ("type", "ExternalName")])
def test_a_default_that_another_client_has_changed_differs(field: str, value: object) -> None:
    for changed in (_applied(None, service()), _applied(None, {**service(), "spec": {}})):
        changed["spec"][field] = value
        # as the API server records a change by another client
        changed["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"].pop(f"f:{field}", None)
        assert not apply_diff.is_up_to_date(service(), changed)


def test_the_requested_type_of_a_service_is_compared() -> None:
    wanted = service(type="NodePort")
    assert apply_diff.is_up_to_date(wanted, _applied(None, wanted))
    assert not apply_diff.is_up_to_date(wanted, _applied(None, service()))


def test_only_fields_that_the_manifest_does_not_set_are_foreign() -> None:
    containers = {
        'k:{"name":"c"}': {
            ".": {},
            "f:args": {},
            "f:env": {'k:{"name":"A"}': {"f:value": {}}, 'k:{"name":"LD_PRELOAD"}': {".": {}, "f:value": {}}},
        },
        'k:{"name":"sidecar"}': {".": {}, "f:image": {}},
    }
    template = {"f:metadata": {"f:annotations": {"f:restartedAt": {}}}, "f:spec": {"f:containers": containers}}
    manifest = copy.deepcopy(MANIFEST)
    manifest["spec"]["template"]["metadata"] = {"labels": {"a": "b"}}
    found = _applied(None, manifest)
    assert apply_diff.foreign_fields(manifest, found) == ()
    found["metadata"]["managedFields"] += [
        {"manager": "someone", "operation": "Update", "fieldsV1": {"f:spec": {"f:paused": {}, "f:template": template}}},
        {"manager": "someone", "operation": "Update", "fieldsV1": {"f:metadata": {"f:annotations": {"f:a": {}}}}},
        {
            "manager": "hpa",
            "operation": "Update",
            "subresource": "scale",
            "fieldsV1": {"f:spec": {"f:minReadySeconds": {}}},
        },
    ]
    inside = "spec.template.spec.containers"
    assert apply_diff.foreign_fields(manifest, found) == (
        "spec.paused",
        f"{inside}[c].env[LD_PRELOAD]",
        f"{inside}[sidecar]",
    )


def test_each_entry_of_a_long_list_is_read_a_fixed_number_of_times() -> None:
    # nothing else is done meanwhile, and no probe is answered: a comparison of each entry with each other took a minute for 9 000
    count, reads = 1000, 0

    class Entry(dict[str, Any]):
        def get(self, *arguments: Any) -> Any:
            nonlocal reads
            reads += 1
            return super().get(*arguments)

    manifest = copy.deepcopy(MANIFEST)
    container(manifest)["env"] = [{"name": f"A{number}", "value": str(number)} for number in range(count)]
    found = _applied(None, manifest)
    fields = copy.deepcopy(apply_diff.owned_fields(found))
    found["metadata"]["managedFields"].append({"manager": "other", "operation": "Apply", "fieldsV1": fields})
    for one in (manifest, found):
        container(one)["env"] = [Entry(entry) for entry in container(one)["env"]]
    assert apply_diff.is_up_to_date(manifest, found)
    assert apply_diff.foreign_fields(manifest, found) == ()
    assert count <= reads <= 10 * count
    container(found)["env"][800]["value"] = "other"
    assert not apply_diff.is_up_to_date(manifest, found)
    del container(manifest)["env"][999]
    assert apply_diff.foreign_fields(manifest, found) == ("spec.template.spec.containers[c].env[A999]",)
