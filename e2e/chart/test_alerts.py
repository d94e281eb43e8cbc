"""Each alert of the chart fires, and is quiet when all is well: promtool says so, on the rules as the chart renders them."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from encoder_node import extra_programs
from encoder_platform import chart
from encoder_platform.chart import Body, Helm

TESTS = Path(__file__).with_name("alerts.test.yaml")
OPERATIONS = chart.ROOT / "docs" / "operations.md"


@pytest.fixture
def rules(helm: Helm) -> Body:
    values = {"monitoring": {"alerts": {"enabled": True}}}
    spec: Body = chart.find(helm.render(values), "PrometheusRule", "encoder-operator")["spec"]
    return spec


def named(rules: Body) -> dict[str, Body]:
    return {rule["alert"]: rule for group in rules["groups"] for rule in group["rules"]}


def test_each_alert_fires_and_is_quiet_when_all_is_well(rules: Body, tmp_path: Path) -> None:
    for rule in named(rules).values():
        # promtool compares every word; the descriptions hold no numbers
        del rule["annotations"]["description"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    (tmp_path / TESTS.name).write_text(TESTS.read_text())
    promtool = str(extra_programs.program("promtool"))
    done = subprocess.run(
        [promtool, "test", "rules", TESTS.name], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    checked = [promtool, "check", "rules", "--lint=all", "rules.yaml"]
    said = subprocess.run(checked, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stdout + said.stderr


def test_no_alert_is_without_a_test(rules: Body) -> None:
    fires, quiet = set(), set()
    for test in yaml.safe_load(TESTS.read_text())["tests"]:
        for found in test["alert_rule_test"]:
            (fires if found.get("exp_alerts") else quiet).add(found["alertname"])
    assert fires == quiet == set(named(rules))


def test_each_alert_says_what_to_do(rules: Body) -> None:
    page = OPERATIONS.read_text()
    for name, rule in named(rules).items():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        assert re.search(rf"`{name}`", page), f"{name} is not in docs/operations.md"


def test_labels_of_a_company_are_on_every_alert(helm: Helm) -> None:
    values = {"monitoring": {"alerts": {"enabled": True, "alertLabels": {"team": "search"}}}}
    spec = chart.find(helm.render(values), "PrometheusRule", "encoder-operator")["spec"]
    assert {rule["labels"]["team"] for rule in named(spec).values()} == {"search"}
    assert named(spec)["EncoderModelFailed"]["labels"]["severity"] == "critical"
