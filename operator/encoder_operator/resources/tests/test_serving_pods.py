"""What every serving pod promises, whatever its spec: time to load before anything may kill it, and no way out to a hub."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from encoder_operator.resources import serving_pod_template
from encoder_operator.revisions.hashing import Json
from encoder_operator.tests.harness import SETTINGS, Harness, encoder_model, parsed_model
from encoder_plugins.__main__ import build_parser
from encoder_plugins.serving import limits

# held to what the operator renders by test_golden_manifests.py
GOLDEN = sorted(
    path for path in (Path(__file__).parent / "golden").glob("*.yaml") if not path.name.endswith(".cr.yaml")
)
# a large checkpoint on a slow volume, and its compilation
LOADING_SECONDS = 1800


def templates(file: Path, component: str) -> list[Json]:
    children = list(yaml.safe_load_all(file.read_text()))
    found = [child["spec"]["template"] for child in children if "template" in child.get("spec", {})]
    assert len(found) == 3
    return [template for template in found if template["metadata"]["labels"]["encoders.dev/component"] == component]


@pytest.mark.complaint(21)
@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_nothing_kills_an_engine_that_is_still_loading(file: Path) -> None:
    (template,) = templates(file, "serving")
    engine = next(found for found in template["spec"]["containers"] if found["name"] == "engine")
    probes = {name: found for name, found in engine.items() if name.endswith("Probe")}
    assert set(probes) == {"startupProbe", "readinessProbe", "livenessProbe"}
    startup = probes["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= LOADING_SECONDS
    # it notices soon that the engine is there, and the others begin then: no delay that is too long and too short
    assert startup["periodSeconds"] <= 5
    for probe in probes.values():
        assert probe["httpGet"] == {"path": "/health", "port": "http"}
        assert "initialDelaySeconds" not in probe
    liveness = probes["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 30


def test_limits_reach_the_command_of_the_engine_and_their_order_changes_no_pod() -> None:
    wanted = {"texts": 8, "body_bytes": 1 << 20}
    one, other = (
        serving_pod_template.build(
            parsed_model({"spec.serving.limits": dict(entries)}), "key", "sha256:1", shared=True, settings=SETTINGS
        )
        for entries in (wanted.items(), reversed(wanted.items()))
    )
    assert one == other
    arguments = build_parser("serve").parse_args(one["spec"]["containers"][0]["args"])
    plugin = parsed_model().plugin
    assert limits.parse(plugin, arguments.limit) == limits.defaults(plugin) | wanted


@pytest.mark.complaint(7)
@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_an_engine_is_offline(file: Path) -> None:
    (template,) = templates(file, "serving")
    spec = template["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert not [volume for volume in spec["volumes"] if {"secret", "projected"} & set(volume)]
    engine = next(found for found in spec["containers"] if found["name"] == "engine")
    environment = {entry["name"]: entry.get("value") for entry in engine["env"]}
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["TRANSFORMERS_OFFLINE"] == "1"
    assert not [name for name in environment if "TOKEN" in name]
    assert "envFrom" not in engine
    mounts = [mount for container in spec["containers"] for mount in container.get("volumeMounts", [])]
    assert {mount["readOnly"] for mount in mounts if mount["name"] == "artifacts"} == {True}


@pytest.mark.complaint(7)
async def test_however_many_pods_serve_one_job_downloads() -> None:
    harness = Harness(encoder_model(replicas=3))
    await harness.settle()
    (job,) = harness.fake.of("jobs", component="prep")
    harness.change(replicas=5)
    await harness.settle()
    # another revision of the same checkpoint
    harness.change(maxModelLen=64)
    await harness.settle()
    assert len(harness.endpoints()) == 5
    assert [found["metadata"]["uid"] for found in harness.fake.of("jobs", component="prep")] == [job["metadata"]["uid"]]
    assert [name for kind, name in harness.fake.created if kind == "jobs" and name.endswith("-prep")] == [
        job["metadata"]["name"]
    ]


def test_hosts_of_images_reach_the_command_of_the_engine() -> None:
    hosts = ["images.example.com", "pages.example.com:8443"]
    images = SETTINGS.images.model_copy(update={"engine": {"cpu": {"colqwen3": "e:1"}}, "prep": {"colqwen3": "p:1"}})
    settings = SETTINGS.model_copy(update={"images": images})
    model = parsed_model({"spec.plugin": "colqwen3", "spec.serving.media": {"allowedHosts": hosts}}, settings)
    template = serving_pod_template.build(model, "key", "sha256:1", shared=True, settings=settings)
    arguments = build_parser("serve").parse_args(template["spec"]["containers"][0]["args"])
    assert arguments.allowed_media_host == hosts
