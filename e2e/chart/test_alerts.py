"""Each alert of the chart fires, and is quiet when all is well: promtool says so, on the rules as the chart renders them.

The queries of the dashboard are tested in the same language, and cover every metric of the documentation.
"""

import json
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


def checked(folder: Path, groups: list[Body]) -> str:
    """Return what promtool says about rules; nothing where they are good."""
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    command = [str(extra_programs.program("promtool")), "check", "rules", "--lint=all", "rules.yaml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr if done.returncode else ""


def panels(helm: Helm) -> dict[str, list[str]]:
    """Return the queries of each panel of the dashboard, by its title."""
    values = {"monitoring": {"dashboard": {"enabled": True}}}
    data = chart.find(helm.render(values), "ConfigMap", "encoder-operator-dashboard")["data"]
    found = json.loads(data["encoder-operator.json"])["panels"]
    return {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in found if "targets" in panel}


def named(rules: Body) -> dict[str, Body]:
    return {rule["alert"]: rule for group in rules["groups"] for rule in group["rules"]}


def test_each_alert_fires_and_is_quiet_when_all_is_well(rules: Body, tmp_path: Path) -> None:
    for rule in named(rules).values():
        # promtool compares every word; these hold no numbers
        del rule["annotations"]["description"]
        del rule["annotations"]["runbook_url"]
    assert checked(tmp_path, rules["groups"]) == ""
    (tmp_path / TESTS.name).write_text(TESTS.read_text())
    promtool = str(extra_programs.program("promtool"))
    done = subprocess.run(
        [promtool, "test", "rules", TESTS.name], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_alert_is_without_a_test(rules: Body) -> None:
    fires: set[str] = set()
    quiet: set[str] = set()
    for test in yaml.safe_load(TESTS.read_text())["tests"]:
        for found in test["alert_rule_test"]:
            (fires if found.get("exp_alerts") else quiet).add(found["alertname"])
    assert fires == quiet == set(named(rules))


def test_each_alert_has_a_response(rules: Body) -> None:
    page = OPERATIONS.read_text()
    for name, rule in named(rules).items():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert path == "docs/operations.md"
        assert f'| <a id="{anchor}"></a>`{name}` |' in page, f"{name} is not in docs/operations.md"


def test_labels_of_a_company_are_on_every_alert(helm: Helm) -> None:
    values = {"monitoring": {"alerts": {"enabled": True, "alertLabels": {"team": "search"}}}}
    spec = chart.find(helm.render(values), "PrometheusRule", "encoder-operator")["spec"]
    assert {rule["labels"]["team"] for rule in named(spec).values()} == {"search"}
    assert named(spec)["EncoderModelFailed"]["labels"]["severity"] == "critical"


def test_releases_that_share_a_cluster_have_an_alert_of_their_own_each(helm: Helm) -> None:
    def serving(namespaces: list[str]) -> list[str]:
        values = {"monitoring": {"alerts": {"enabled": True}}, "watch": {"namespaces": namespaces}}
        found = named(chart.find(helm.render(values), "PrometheusRule", "encoder-operator")["spec"])
        matchers = [m for rule in found.values() for m in re.findall(r"encoder_serving_\w+\{(.*?)\}", rule["expr"])]
        return [which for matcher in matchers for which in re.findall(r'\bnamespace=~"(.*?)"', matcher)]

    assert serving(["team-a", "team-b"]) == ["team-a|team-b"] * 3
    assert serving([]) == [".+"] * 3


def test_every_panel_has_a_valid_query(helm: Helm, tmp_path: Path) -> None:
    queries = [expression for expressions in panels(helm).values() for expression in expressions]
    assert len(queries) > 20
    # Grafana puts the length of an interval in
    rules = [
        {"record": f"panel:{i}:x", "expr": expression.replace("$__rate_interval", "5m")}
        for i, expression in enumerate(queries)
    ]
    assert checked(tmp_path, [{"name": "panels", "rules": rules}]) == ""
    rules[0]["expr"] += ")"
    assert "parse error" in checked(tmp_path, [{"name": "panels", "rules": rules}])


def test_every_number_of_the_documentation_is_in_a_panel(helm: Helm) -> None:
    (table,) = re.findall(r"\| metric \| meaning \|\n(.*?)\n\n", OPERATIONS.read_text(), re.DOTALL)
    documented = set(re.findall(r"`((?:encoder|process)_\w+)", table))
    assert len(documented) > 15
    queries = " ".join(expression for expressions in panels(helm).values() for expression in expressions)
    # the start time is for users who search for restarts
    assert {name for name in documented if name not in queries} == {"process_start_time_seconds"}
