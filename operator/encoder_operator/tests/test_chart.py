"""What can be said of the chart without helm; e2e/chart says the rest with it."""

from __future__ import annotations

import json
import re
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from prometheus_client import REGISTRY, CollectorRegistry

from encoder_operator import naming
from encoder_operator.manager.settings import Settings
from encoder_operator.metrics import metrics
from encoder_plugins.serving.http import metrics as counting

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "encoder-operator"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
TEMPLATES = {path.name: path.read_text() for path in (CHART / "templates").rglob("*") if path.is_file()}
# for tests of the operator, and what its pod knows without being told
NOT_FOR_CHARTS = {"PORT", "IDENTITY", "CRASH_AFTER_WRITE", "CRASH_BEFORE_WRITE"}
# maps of which the user decides the keys
OPEN = {"strings", "quantities", "images"}


def test_default_values_fit_the_schema() -> None:
    jsonschema.validate(VALUES, SCHEMA)


@pytest.mark.parametrize(
    "wrong",
    [
        {"imagee": {}},
        {"image": {"sha": "x"}},
        {"crds": {"enabled": True}},
        {"settings": {"x": 1}},
        {"monitoring": {"alerts": {"enable": True}}},
        {"watch": {"namespaces": ["Not_A_Name"]}},
        {"watch": {"namespaces": "team-a"}},
        {"artifactCollection": {"schedule": "daily"}},
        {"engines": {"cpu": {"mine": {"digest": "sha256:short"}}}},
        {"replicas": "two"},
        {"settings": {"servingResources": {"requests": {"memory": "2 GB"}}}},
        {"settings": {"prepResources": {"limits": {"cpu": -1}}}},
    ],
)
def test_a_misspelt_value_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)


def _objects(schema: Any, values: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    while "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name in OPEN:
            return
        schema = SCHEMA["definitions"][name]
    if schema.get("type") == "object" and "properties" in schema:
        yield path, schema, values
        for key, child in schema["properties"].items():
            yield from _objects(child, values.get(key, {}) if isinstance(values, dict) else {}, f"{path}.{key}")


def test_every_object_of_the_schema_is_closed_and_knows_every_value() -> None:
    found = list(_objects(SCHEMA, VALUES))
    assert len(found) > 15
    for path, schema, values in found:
        assert schema["additionalProperties"] is False, path
        assert set(values) <= set(schema["properties"]), path


def test_every_setting_can_be_set_by_the_chart_and_no_other() -> None:
    written = set(re.findall(r"name: ENCODER_(\w+)", "\n".join(TEMPLATES.values())))
    assert written == {name.upper() for name in Settings.model_fields} - NOT_FOR_CHARTS


def test_defaults_of_the_chart_are_the_defaults_of_the_operator() -> None:
    settings = Settings()
    ours = VALUES["settings"]
    assert ours["maxPreps"] == settings.max_preps
    assert ours["maxPrepsPerNamespace"] == settings.max_preps_per_namespace
    assert ours["concurrency"] == settings.concurrency
    assert ours["resyncSeconds"] == settings.resync_seconds
    assert ours["prepStallSeconds"] == settings.prep_stall_seconds
    assert VALUES["leaderElection"]["leaseSeconds"] == settings.lease_seconds
    for name in ("prep", "serving", "parity"):
        assert ours[f"{name}Resources"] == getattr(settings, f"{name}_resources").model_dump(exclude_defaults=True)


def test_the_memory_request_matches_the_benchmark() -> None:
    table = (ROOT / "docs" / "benchmarks" / "operator.md").read_text()
    (measured,) = re.findall(r"^\| resident \| \**([\d.]+) MiB", table, re.MULTILINE)
    memory = {kind: int(VALUES["resources"][kind]["memory"].removesuffix("Mi")) for kind in ("requests", "limits")}
    assert memory["requests"] >= float(measured)
    # a limit is for a mistake, not for a busy day
    assert memory["limits"] >= 2 * float(measured)


def test_no_permission_is_a_wildcard_and_none_is_about_secrets() -> None:
    text = re.sub(r"#.*", "", TEMPLATES["rbac.yaml"] + TEMPLATES["model.yaml"])
    assert "*" not in text.replace("/*", "").replace("*/", "")
    assert not re.search(r"resources:.*\bsecrets\b", text)
    assert "pods/exec" not in text


@pytest.mark.complaint(16)
@pytest.mark.parametrize("attempt", [1, 10, 1000])
@pytest.mark.parametrize("model", ["m", "minilm", "m" * 37, "m" * 38, "m" * naming.MAX_MODEL_NAME], ids=len)
def test_every_pod_whose_report_is_believed_is_known_by_its_name(model: str, attempt: int) -> None:
    # k8s.io/apiserver/pkg/storage/names: 63 characters, five of them the API server's own
    for job in (naming.parity_job(model, "0123456789", attempt), naming.prep_job(model, "0123456789abcdef")):
        assert _is_protected((job + "-")[:58] + "x7kq2"), job
    for other in (
        f"{model}-0123456789-x7kq2",
        "mine",
        f"{model}-parity-1-x7kq2",
        f"{model}-prep-x7kq2",
        "runner-0123456789abcdef-x7kq2",
    ):
        assert not _is_protected(other), other


def _is_protected(pod: str) -> bool:
    """Evaluate the match condition of the policy."""
    *anywhere, longest = re.findall(r"request\.name\.matches\('(.*?)'\)", TEMPLATES["gate-policy.yaml"])
    assert len(anywhere) == 2
    return any(re.match(pattern, pod) for pattern in anywhere) or (len(pod) == 63 and bool(re.match(longest, pod)))


def _exposed(registry: CollectorRegistry) -> set[str]:
    found: set[str] = set()
    for family in registry.collect():
        parts = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        found |= {family.name + part for part in parts}
    return found


def test_alerts_and_dashboard_ask_for_metrics_that_exist() -> None:
    texts = [(CHART / "files" / name).read_text() for name in ("alerts.yaml", "dashboard.json")]
    asked = set(re.findall(r"\bencoder_[a-z_]+\b", "".join(texts)))
    assert len(asked) > 12
    assert asked <= _exposed(metrics.REGISTRY) | {name for name in _exposed(REGISTRY) if "_serving_" in name}
    assert 'reason="overloaded"' in texts[0]
    assert "overloaded" in counting.REASONS.values()


# what Prometheus adds to what a pod says, and what the PodMonitor of the serving pods does
OF_TARGETS = {"namespace", "pod", "model", "revision", "le"}


def _labels() -> dict[str, set[str]]:
    """Return the labels of every metric of ours, by its name on the page."""
    found: dict[str, set[str]] = {}
    for registry in (metrics.REGISTRY, REGISTRY):
        for collector, names_ in registry._collector_to_names.items():
            for name in names_:
                if name.startswith("encoder_"):
                    found[name] = set(collector._labelnames)  # type: ignore[attr-defined]
    return found


def test_alerts_and_panels_use_existing_labels() -> None:
    known = _labels()
    rules = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    board = json.loads((CHART / "files" / "dashboard.json").read_text())
    asked = [rule["expr"] for group in rules for rule in group["rules"]]
    asked += [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    checked = 0
    for expression in asked:
        for name, matchers in re.findall(r"\b(encoder_\w+)(?:\{(.*?)\})?", expression):
            ours = known[name] | OF_TARGETS
            used = set(re.findall(r"(\w+)(?:=|!=|=~|!~)\"", matchers))
            used |= {label for found in re.findall(r"by \((.*?)\)", expression) for label in found.split(", ")}
            assert used <= ours, (expression, used - ours)
            checked += len(used)
    assert checked > 40
    said = [(target["expr"], target["legendFormat"]) for p in board["panels"] for target in p.get("targets", [])]
    for expression, legend in said:
        kept = {label for found in re.findall(r"by \((.*?)\)", expression) for label in found.split(", ")}
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= kept, (expression, legend)


def test_chart_operator_and_images_have_one_version_and_it_is_a_new_one() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (locked,) = re.findall(r'name = "encoder-operator"\nversion = "(.*)"', (ROOT / "uv.lock").read_text())
    assert chart["version"] == chart["appVersion"] == project["version"] == locked
    assert f"## {chart['version']}" in (ROOT / "CHANGELOG.md").read_text()
    (packaged,) = (ROOT / "e2e" / "chart" / "previous").glob("*.tgz")
    with tarfile.open(packaged) as content, content.extractfile("encoder-operator/Chart.yaml") as file:  # type: ignore[union-attr]
        previous = yaml.safe_load(file)
    # the images' default tags: a node that has an image of this name does not pull another one
    assert previous["appVersion"] != chart["appVersion"]
    assert previous["version"] != chart["version"]


def test_texts_name_images_of_this_version() -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    files = [*(ROOT / "docs").glob("*.md"), *(ROOT / "images").rglob("*"), ROOT / "README.md"]
    named = {
        (file.name, image, tag)
        for file in files
        if file.is_file() and not {"tests", "__pycache__"} & set(file.parts)
        for image, tag in re.findall(r"(encoder-operator/[a-z_-]+):(\d+\.\d+\.\d+)", file.read_text())
    }
    assert len(named) > 5
    assert {tag for _, _, tag in named} == {version}
