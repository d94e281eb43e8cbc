from pathlib import Path

import pytest
import yaml

from encoder_node import layouts, targets
from encoder_plugins import catalog
from encoder_release import build, chart, provenance, release
from encoder_release.plan import ReleaseError, plan
from encoder_release.provenance import Source

REGISTRY = "images.example.org/team"
DIGEST = "sha256:" + "1" * 64
SOURCE = Source(commit="2" * 40, time="2026-01-02T03:04:05Z", url="https://git.example.org/encoders")
VALUES = (release.CHART_FOLDER / "values.yaml").read_text()
CHART = (release.CHART_FOLDER / "Chart.yaml").read_text()


def test_values_have_the_digest_of_every_image_and_nothing_else_changes() -> None:
    names = [target.name for target in targets.targets(catalog.plugins().values(), "1.2.0") if target.name != "e2e"]
    digests = {name: f"sha256:{number:064x}" for number, name in enumerate(names)}
    text = chart.values(VALUES, REGISTRY, digests)
    got, expected = yaml.safe_load(text), yaml.safe_load(VALUES)
    found = {"operator": got["image"].pop("digest"), **{f"prep-{k}": v["digest"] for k, v in got.pop("preps").items()}}
    for kind, engines in got.pop("engines").items():
        found |= {f"engine-{name}-{kind}": image["digest"] for name, image in engines.items()}
    assert found == digests
    assert got.pop("imageRegistry") == REGISTRY
    for name in ("imageRegistry", "preps", "engines"):
        del expected[name]
    del expected["image"]["digest"]
    assert got == expected
    comments = [line for line in VALUES.splitlines() if line.strip().startswith("#")]
    assert [line for line in text.splitlines() if line.strip().startswith("#")] == comments


def test_values_of_another_shape_are_refused() -> None:
    with pytest.raises(ReleaseError, match="imageRegistry"):
        chart.values(VALUES.replace('imageRegistry: ""', "imageRegistry: x"), REGISTRY, {})


def test_the_chart_names_its_source_its_maintainer_and_its_images() -> None:
    text = chart.description(CHART, "1.2.0-rc.1", SOURCE, "A Name <a@example.org>", {"operator": f"x/y@{DIGEST}"})
    got = yaml.safe_load(text)
    assert (got["version"], got["appVersion"]) == ("1.2.0-rc.1", "1.2.0-rc.1")
    assert (got["home"], got["sources"]) == (SOURCE.url, [SOURCE.url])
    assert got["maintainers"] == [{"name": "A Name", "email": "a@example.org"}]
    annotations = got["annotations"]
    assert yaml.safe_load(annotations["artifacthub.io/images"]) == [{"name": "operator", "image": f"x/y@{DIGEST}"}]
    assert annotations["artifacthub.io/prerelease"] == "true"
    assert all(isinstance(value, str) for value in annotations.values())
    unknown = yaml.safe_load(chart.description(CHART, "1.2.0", Source(commit="2" * 40, time=SOURCE.time), "", {}))
    assert not {"home", "sources", "maintainers"} & set(unknown)
    with pytest.raises(ReleaseError, match="MAINTAINER"):
        chart.description(CHART, "1.2.0", SOURCE, "A Name <a@", {})


def test_a_statement_names_its_subject_and_what_it_is_built_from() -> None:
    found = provenance.statement(
        "x/y", DIGEST, SOURCE, {"target": "cpu"}, "2026-01-02T03:04:06Z", "2026-01-02T03:05:06Z"
    )
    assert (found["_type"], found["predicateType"]) == (provenance.STATEMENT, provenance.PREDICATE)
    assert found["subject"] == [{"name": "x/y", "digest": {"sha256": "1" * 64}}]
    definition = found["predicate"]["buildDefinition"]
    assert definition["externalParameters"] == {"target": "cpu"}
    assert definition["resolvedDependencies"] == [
        {"uri": f"git+{SOURCE.url}@{SOURCE.commit}", "digest": {"gitCommit": SOURCE.commit}}
    ]
    assert found["predicate"]["runDetails"]["builder"]["id"] == provenance.WORKSTATION
    changed = Source(commit="2" * 40, time=SOURCE.time, changed=True)
    assert provenance.predicate(changed, {}, "", "")["buildDefinition"]["externalParameters"] == {
        "uncommittedChanges": True
    }


def test_an_index_has_a_manifest_for_each_platform(tmp_path: Path) -> None:
    manifests = {}
    for architecture in ("amd64", "arm64"):
        (tmp_path / "layer.tar").write_bytes(architecture.encode())
        manifests[architecture] = layouts.write_layout(
            tmp_path / "layout", tmp_path / "layer.tar", [], architecture=architecture
        )
    index = layouts.write_index(tmp_path / "layout", manifests)
    arm64, both = (build.platform_manifests(tmp_path / "layout", digest) for digest in (manifests["arm64"], index))
    assert arm64 == {"linux/arm64": manifests["arm64"]}
    assert both == {f"linux/{name}": digest for name, digest in manifests.items()}


def test_without_docker_platforms_are_built_that_this_machine_runs(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = build.PLATFORMS["operator"]
    assert build.platforms_here(wanted, ("amd64", "arm64")) == list(wanted)
    assert build.platforms_here(("linux/amd64",), ("amd64",)) == ()
    assert capsys.readouterr().out == ""
    assert build.platforms_here(wanted, ("amd64",)) == ()
    assert "without linux/arm64" in capsys.readouterr().out


def test_docker_builds_the_operator_for_two_platforms() -> None:
    images = plan(REGISTRY, "1.2.0", "1.2.0", targets.targets(catalog.plugins().values(), "1.2.0")).images
    for image in images:
        command = list(build.docker_command(image.target, Path("/layout"), Path("/metadata")))
        platforms = command[command.index("--platform") + 1].split(",")
        assert platforms == (["linux/amd64", "linux/arm64"] if image.target.name == "operator" else ["linux/amd64"])
        assert "type=oci,tar=false,dest=/layout" in command
