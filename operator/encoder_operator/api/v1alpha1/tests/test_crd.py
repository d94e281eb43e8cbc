from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any, get_args

import jsonschema  # type: ignore[import-untyped]
import pytest

from encoder_operator.api.v1alpha1 import Spec, Status, crd
from encoder_operator.revisions.hashing import Json
from encoder_operator.tests.harness import encoder_model
from encoder_plugins import catalog
from encoder_plugins.plugin import REQUEST_LIMITS
from encoder_plugins.prep.progress import Phase

ROOT = Path(__file__).parents[5]
SCHEMA = crd.build()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def nodes(schema: Any) -> list[Json]:
    if isinstance(schema, list):
        return [found for entry in schema for found in nodes(entry)]
    if not isinstance(schema, dict):
        return []
    return [schema, *(found for value in schema.values() for found in nodes(value))]


# the plugins that are planned, with names as long as any
NINE_MORE = [f"{'planned_plugin_with_a_long_name':_<38}{number:02}" for number in range(9)]
# of all annotations of an object; client-side `kubectl apply` puts the whole definition into one
ANNOTATIONS_BYTES = 256 * 1024


def stored(definition: Json) -> int:
    """Return the size of the JSON without blanks: what is in etcd, and in the annotation of client-side apply."""
    return len(json.dumps(definition, separators=(",", ":"), ensure_ascii=False).encode())


@pytest.mark.complaint(25)
def test_two_served_versions_with_all_planned_plugins_fit_into_an_annotation() -> None:
    definition = crd.build()
    (version,) = definition["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    spec["plugin"]["enum"] += NINE_MORE
    one = stored(definition)
    definition["spec"]["versions"].append(copy.deepcopy(version) | {"name": "v1beta1", "storage": False})
    two = stored(definition)
    print(f"{one} bytes with one version, {two} with two")
    assert two < ANNOTATIONS_BYTES / 2
    # what this project allows itself, so that nobody notices too late
    assert one < 64 * 1024
    assert stored(spec["serving"]["properties"]["affinity"]) < one / 4


def test_it_is_structural() -> None:
    for node in nodes(SCHEMA):
        assert not {"$ref", "$defs", "anyOf", "oneOf", "title", "const"} & set(node)
        assert node.get("additionalProperties") is not False
        assert not isinstance(node.get("default"), type(None)) or "default" not in node


def test_every_field_has_a_description() -> None:
    affinity = SCHEMA["properties"]["spec"]["properties"]["serving"]["properties"]["affinity"]
    undescribed = {id(node) for node in nodes(affinity)} - {id(affinity)}
    for part in (SCHEMA["properties"]["spec"], SCHEMA["properties"]["status"]):
        for node in nodes(part):
            for name, field in node.get("properties", {}).items():
                if isinstance(field, dict) and id(field) not in undescribed:
                    assert field.get("description"), name


def test_every_rule_has_a_message() -> None:
    rules = [rule for node in nodes(SCHEMA) for rule in node.get("x-kubernetes-validations", [])]
    assert len(rules) >= 9
    assert all(" " in rule["message"] and "self" in rule["rule"] for rule in rules)


def test_what_a_rule_reads_has_a_longest_value() -> None:
    # the API server refuses a definition whose rules might cost too much, and counts with the largest values that the schema allows
    for node in nodes(SCHEMA):
        if "x-kubernetes-validations" in node:
            assert {"string": "maxLength", "array": "maxItems"}.get(node["type"], "type") in node, node


def test_plugins_are_those_of_the_catalogue() -> None:
    assert SCHEMA["properties"]["spec"]["properties"]["plugin"]["enum"] == list(catalog.plugins())


def test_lists_with_keys_are_maps_to_the_api_server() -> None:
    assert SCHEMA["properties"]["status"]["properties"]["conditions"]["x-kubernetes-list-map-keys"] == ["type"]


@pytest.mark.parametrize("quantity", ["10Gi", "1.5", ".5", "500m", "1e3", 7])
def test_quantities_as_kubernetes_has_them(quantity: str | int) -> None:
    spec = encoder_model(resources={"requests": {"cpu": quantity}})["spec"]
    assert Spec.model_validate(spec).serving.resources is not None
    jsonschema.validate({"spec": spec}, SCHEMA)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("serving.replicas", -1),
        ("serving.replicas", "2"),
        ("serving.accelerator", "tpu"),
        ("serving.maxModelLen", 0),
        ("parity.mode", "Maybe"),
        ("parity.thresholds", {"cosine": "nearly"}),
        ("parity.thresholds", {"cosine": 0.9}),
        ("prepare.backoffLimit", 99),
        ("storage.policy", "Maybe"),
        ("storage.create", {"size": "lots"}),
        ("source.huggingFace", {"repo": "no-owner", "revision": "1" * 40}),
        ("suspend", "yes"),
        ("storage.create", {"size": -1}),
        ("serving.resources", {"requests": {"cpu": -1}}),
        ("rollout.maxSurge", -1),
        ("rollout.maxUnavailable", -1),
        ("rollout.maxUnavailable", "-5%"),
        ("serving.resourceClaims", [{"name": "gpu", "resourceClaimName": "c", "request": "GPU"}]),
        # of a Deployment, which has 32 bits for it
        ("rollout.maxSurge", 2**31),
    ],
)
def test_bad_values_are_refused_by_the_schema_and_by_the_operator(path: str, value: Any) -> None:
    spec = encoder_model()["spec"]
    *folders, name = path.split(".")
    target = spec
    for folder in folders:
        target = target.setdefault(folder, {})
    target[name] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"spec": spec}, SCHEMA)
    with pytest.raises(ValueError, match=name):
        Spec.model_validate(spec)


def test_the_phases_of_the_preparation_are_those_that_it_reports() -> None:
    described = Status.model_json_schema()["$defs"]["Progress"]["properties"]["phase"]["description"]
    assert set(re.findall("[a-z]+", described.partition(":")[2])) - {"or"} == set(get_args(Phase))


@pytest.mark.parametrize(
    "page", ["crds/encodermodels.encoders.dev.yaml", "docs/autoscaling.md", "charts/encoder-operator/files/alerts.yaml"]
)
def test_the_default_limit_of_concurrent_requests_is_the_engines(page: str) -> None:
    (limit,) = [found.default for found in REQUEST_LIMITS if found.name == "in_flight"]
    text = " ".join((ROOT / page).read_text().split())
    assert re.findall(r"(?:maxInFlight`?, |requests per pod; )(\d+)", text) == [str(limit)]


def test_the_operators_own_status_fits_the_schema() -> None:
    assert set(SCHEMA["properties"]["status"]["properties"]) == {field.alias for field in Status.model_fields.values()}
