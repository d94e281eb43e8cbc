"""Every child of an EncoderModel, byte for byte: a change of what the operator renders shows in a diff of golden/*.yaml.

After an intended change, `encoder-operator render golden/X.cr.yaml > golden/X.yaml` with the settings below writes them again. What a
new field adds must not show where it is not used: the names of revisions hold a hash of all of it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import yaml

from encoder_operator import resources
from encoder_operator.cli import main
from encoder_operator.revisions.hashing import Json
from encoder_operator.tests.harness import SETTINGS, with_fields
from encoder_plugins import __main__ as plugins

# the files stay as they are when the prep of a plugin changes
pytestmark = pytest.mark.usefixtures("first_prep_versions")

GOLDEN = Path(__file__).parent / "golden"
# their claim is theirs, and ReadWriteOnce, which no manifest says
ONE_NODE = frozenset({"everything"})
CASES = sorted(path.name.removesuffix(".cr.yaml") for path in GOLDEN.glob("*.cr.yaml"))


def pod_specs(found: list[Json]) -> list[Json]:
    return [entry["spec"]["template"]["spec"] for entry in found if "template" in entry.get("spec", {})]


@pytest.fixture
def rendered(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> str:
    monkeypatch.setenv("ENCODER_IMAGES", SETTINGS.images.model_dump_json(by_alias=True))
    monkeypatch.setenv("ENCODER_ALLOW_TRUST_REMOTE_CODE", "true")
    asked = ["--one-node"] if request.param in ONE_NODE else []
    assert main.main(["render", str(GOLDEN / f"{request.param}.cr.yaml"), *asked]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("name", "rendered"), [(name, name) for name in CASES], indirect=["rendered"], ids=CASES)
def test_children_are_what_they_were(name: str, rendered: str) -> None:
    assert rendered == (GOLDEN / f"{name}.yaml").read_text(), resources.__doc__


@pytest.mark.parametrize("rendered", CASES, indirect=True)
def test_every_pod_fits_the_restricted_profile(rendered: str) -> None:
    specs = pod_specs(list(yaml.safe_load_all(rendered)))
    assert len(specs) == 3
    for spec in specs:
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("rendered", CASES, indirect=True)
def test_only_the_prep_pod_may_write_the_artifacts_or_see_a_token(rendered: str) -> None:
    for entry in yaml.safe_load_all(rendered):
        component = entry["metadata"]["labels"]["encoders.dev/component"]
        for spec in pod_specs([entry]):
            volumes = {volume["name"]: volume for volume in spec["volumes"]}
            secret = {name for name, volume in volumes.items() if "secret" in str(volume)}
            for container in spec["containers"]:
                mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
                assert mounts["artifacts"].get("readOnly", False) == (component != "prep")
                assert component == "prep" or not secret & set(mounts)
                assert not any("secret" in str(variable).lower() for variable in container.get("env", []))


@pytest.mark.complaint(16)
@pytest.mark.parametrize("rendered", CASES, indirect=True)
def test_names_fit_a_label_also_of_the_longest_model_name(rendered: str) -> None:
    for entry in yaml.safe_load_all(rendered):
        meta = entry["metadata"]
        model = meta["labels"]["encoders.dev/model"]
        assert entry["kind"] == "ControllerRevision" or len(meta["name"]) - len(model) + 40 <= 63
        assert all(len(value) <= 63 for value in meta["labels"].values())


def test_a_rejected_model_is_reported_with_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCODER_IMAGES", '{"operator": "operator:1"}')
    file = tmp_path / "cr.yaml"
    file.write_text((GOLDEN / "cpu.cr.yaml").read_text())
    assert main.main(["render", str(file)]) == 65
    assert "NoImage" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "Namespace"}, "only EncoderModels can be rendered"),
        ({"metadata": {"name": "x" * 41}}, "at most 40 characters"),
        ({"metadata": {"name": "1st"}}, "must start with a letter"),
        ({"spec": {}}, "InvalidSpec: spec.plugin: Field required"),
    ],
)
def test_what_the_api_server_would_refuse_is_refused_without_one(
    changes: Json, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCODER_IMAGES", SETTINGS.images.model_dump_json(by_alias=True))
    file = tmp_path / "cr.yaml"
    file.write_text(yaml.safe_dump(with_fields({}) | changes))
    assert main.main(["render", str(file)]) == 65
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("content", "options", "code", "said"),
    [
        (None, [], 66, "No such file or directory"),
        (b"kind: EncoderModel", ["--inputs", "no-such.json"], 66, "no-such.json: No such file or directory"),
        (b"kind: [", [], 65, "invalid YAML"),
        (b"\xff\xfe\x00", [], 65, "invalid YAML"),
        (b"- a list", [], 65, "only EncoderModels can be rendered"),
        (b"kind: EncoderModel", [], 65, "metadata.name is required"),
        (b"kind: EncoderModel\nmetadata: {name: 7}", [], 65, "metadata.name is required"),
        (b"kind: EncoderModel\nmetadata: {name: m}\nspec:", [], 65, "spec is required"),
        (b"kind: EncoderModel\nmetadata: {name: m}\nspec: {parity: null}", [], 65, "InvalidSpec"),
    ],
)
def test_unreadable_files_are_reported_in_one_line(
    content: bytes | None,
    options: list[str],
    code: int,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "cr.yaml"
    if content is not None:
        file.write_bytes(content)
    assert main.main(["render", str(file), *options]) == code
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_empty_documents_between_models_are_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCODER_IMAGES", SETTINGS.images.model_dump_json(by_alias=True))
    file, alone = tmp_path / "cr.yaml", yaml.safe_dump(with_fields({}))
    file.write_text(f"---\n---\n{alone}---\n")
    assert main.main(["render", str(file)]) == 0
    with_empty = capsys.readouterr().out
    file.write_text(alone)
    assert main.main(["render", str(file)]) == 0
    assert with_empty == capsys.readouterr().out


def test_cases_of_ones_own_are_in_the_artifacts_key_by_their_content(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCODER_IMAGES", SETTINGS.images.model_dump_json(by_alias=True))
    file, cases = tmp_path / "cr.yaml", tmp_path / "inputs.json"
    file.write_text(yaml.safe_dump(with_fields({"spec.parity": {"inputs": {"configMapRef": {"name": "cases"}}}})))
    cases.write_text("[]")
    found = set()
    for options in ([], ["--inputs", str(cases)]):
        assert main.main(["render", str(file), *options]) == 0
        rendered = capsys.readouterr().out
        assert "--inputs-sha256" in rendered
        found.add(rendered)
    assert len(found) == 2
    assert hashlib.sha256(b"[]").hexdigest() in rendered


def test_invalid_settings_are_reported_before_the_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCODER_PREP_STALL_SECONDS", "1")
    assert main.main(["run"]) == 64
    assert "prep_stall_seconds" in capsys.readouterr().err


@pytest.mark.parametrize("rendered", CASES, indirect=True)
def test_the_images_accept_the_arguments_of_the_manifests(rendered: str) -> None:
    told = []
    for spec in pod_specs(list(yaml.safe_load_all(rendered))):
        args = next(c["args"] for c in spec["containers"] if c["name"] in ("prepare", "engine", "parity"))
        ours = args[: args.index("--")] if "--" in args else args
        told.append(vars(plugins.build_parser(ours[0]).parse_args(ours))["command"])
    assert sorted(told) == ["parity", "prepare", "serve"]
