"""Which images there are, and the bake file."""

import dataclasses
import json
import tomllib

import pytest

from encoder_node import cluster as clusters
from encoder_node import images, targets
from encoder_plugins import catalog

PLUGIN = next(iter(catalog.plugins().values()))
OTHER = dataclasses.replace(PLUGIN, name="other_family", reference_library="other_library", extra="more")


def test_committed_bake_file_is_what_the_catalogue_says() -> None:
    assert targets.BAKE_FILE.read_text() == targets.rendered()


def test_check_fails_when_the_file_differs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stale = targets.BAKE_FILE.with_name("no-such-file.json")
    monkeypatch.setattr(targets, "BAKE_FILE", stale)
    assert targets.main(["--check"]) == 1
    assert "make generate" in capsys.readouterr().err


def test_each_plugin_gets_two_engines_and_one_prep() -> None:
    found = {target.name: target for target in targets.targets([PLUGIN, OTHER], "1.2.3")}
    assert found["engine-other_family-cpu"].reference == "encoder-operator/engine-other_family:1.2.3-cpu"
    assert found["engine-other_family-cuda"].reference == "encoder-operator/engine-other_family:1.2.3-cuda"
    assert found["prep-other_family"].reference == "encoder-operator/prep-other_family:1.2.3"
    assert found["prep-other_family"].arguments == {"PLUGIN": "other_family", "REFERENCE": "other_library"}
    for kind in ("cpu", "cuda"):
        assert found[f"engine-other_family-{kind}"].arguments == {"PLUGIN": "other_family", "EXTRA": "more"}
    assert found["operator"].reference == "encoder-operator/operator:1.2.3"
    assert len(found) == 2 + 2 * 3


def test_every_dockerfile_and_stage_exists() -> None:
    for target in targets.current():
        text = (targets.ROOT / target.dockerfile).read_text()
        assert f" AS {target.stage}\n" in text, target.name
        for argument in target.arguments:
            assert f"ARG {argument}\n" in text, target.name


def test_where_docker_answers_it_builds_without_a_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(clusters, "docker_answers", lambda: True)
    built: list[str] = []

    def command(target: targets.Target, program: str = "true") -> list[str]:
        built.append(target.name)
        return [program]

    monkeypatch.setattr(images, "docker_command", command)
    assert images.main(["operator", "e2e"]) == 0
    assert built == ["operator", "e2e"]
    assert capsys.readouterr().out.splitlines()[0].startswith("operator encoder-operator/operator:")
    monkeypatch.setattr(images, "docker_command", lambda target: command(target, "false"))
    assert images.main(["operator", "e2e"]) == 1
    assert built[2:] == ["operator"]


def test_every_extra_is_one_of_the_distribution_s() -> None:
    extras = tomllib.loads((targets.ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {plugin.extra for plugin in catalog.plugins().values()} - {None} <= extras.keys()


def test_every_reference_library_has_its_lock() -> None:
    folders = {path.parent.name for path in (targets.ROOT / "images" / "reference").glob("*/requirements.lock")}
    for target in targets.current():
        if "REFERENCE" in target.arguments:
            assert target.arguments["REFERENCE"] in folders, target.name


def test_nodes_without_gpus_get_no_cuda_image() -> None:
    chosen = targets.for_cpu_nodes(targets.targets([PLUGIN], "1.2.3"))
    assert not [target for target in chosen if "cuda" in target.reference]


def test_release_group_leaves_the_tests_image_out() -> None:
    content = json.loads(targets.rendered())
    assert "e2e" not in content["group"]["default"]["targets"]
    assert "e2e" in content["group"]["cpu"]["targets"]


def test_cuda_base_and_lock_name_one_version() -> None:
    name, version = images.standin_for((targets.ROOT / "images/engine/Dockerfile").read_text())
    assert name == f"vllm/vllm-openai:v{version}"
    lock = (targets.ROOT / "uv.lock").read_text()
    assert f'name = "vllm"\nversion = "{version}"\n' in lock


def test_pod_names_an_image_by_repository_and_digest() -> None:
    assert images.pinned("encoder-operator/operator:1.2.3", "sha256:ab") == "encoder-operator/operator@sha256:ab"


def test_docker_builds_the_same_target() -> None:
    found = {target.name: target for target in targets.targets([PLUGIN], "1.2.3")}
    command = images.docker_command(found[f"prep-{PLUGIN.name}"])
    assert command[:6] == ["docker", "build", "--quiet", "-f", "images/engine/Dockerfile", "--target"]
    assert f"REFERENCE={PLUGIN.reference_library}" in command
    assert command[-1] == "."
