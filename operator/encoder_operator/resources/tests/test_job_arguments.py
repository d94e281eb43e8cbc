"""What the operator's Jobs say, against what the commands in them understand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from encoder_operator.cli import render
from encoder_operator.manager.settings import Settings
from encoder_operator.revisions.hashing import Json
from encoder_operator.tests.harness import SETTINGS, with_fields
from encoder_plugins.__main__ import build_parser

TOKEN = "/var/run/encoders/token/token"
GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(path.name for path in GOLDEN.glob("*.yaml") if not path.name.endswith(".cr.yaml"))


def arguments(component: str, name: str) -> list[list[str]]:
    documents: list[dict[str, Any]] = list(yaml.safe_load_all((GOLDEN / name).read_text()))
    return [
        document["spec"]["template"]["spec"]["containers"][0]["args"]
        for document in documents
        if document["kind"] == "Job" and document["metadata"]["labels"]["encoders.dev/component"] == component
    ]


@pytest.mark.parametrize("name", CASES)
def test_prep_understands_its_job(name: str) -> None:
    (given,) = arguments("prep", name)
    parsed = build_parser("prepare").parse_args(given)
    # each value has come where it was meant to: nothing is left for what comes without a name
    assert len(str(parsed.output).rpartition("/")[2]) == 64
    assert parsed.termination_log == Path("/dev/termination-log")
    assert parsed.source.startswith(("s3://", "https://", "http://", "/source")) or parsed.source.count("/") == 1


@pytest.mark.parametrize("name", CASES)
def test_parity_understands_its_job(name: str) -> None:
    (given,) = arguments("parity", name)
    parsed = build_parser("parity").parse_args(given)
    assert parsed.url.startswith("http://")
    assert parsed.binding["revision"]


def prep_pod(plugin: str, fields: dict[str, Any], settings: Settings = SETTINGS) -> dict[str, Any]:
    """Return the pod of the prep Job of a model with an image of its own."""
    images = settings.images.model_copy(update={"prep": {plugin: "prep:1"}})
    model = with_fields({"spec.plugin": plugin, "spec.image": "mine:1", **fields})
    children = render.render_children(model, settings.model_copy(update={"images": images}))
    (job,) = [child for child in children if child["metadata"]["name"].endswith("-prep")]
    found: dict[str, Any] = job["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize(
    ("source", "given", "options"),
    [
        ({"http": {"url": "https://web/a.tar", "sha256": "1" * 64}}, "https://web/a.tar", {"sha256": "1" * 64}),
        ({"pvc": {"claimName": "models", "path": "a/b/"}}, "/source/a/b", {}),
        ({"pvc": {"claimName": "models"}}, "/source", {}),
        ({"s3": {"uri": "s3://models/a", "region": "eu"}}, "s3://models/a", {"region": "eu"}),
        ({"huggingFace": {"repo": "a/b", "revision": "2" * 40}}, "a/b", {"revision": "2" * 40}),
    ],
)
def test_the_source_reaches_the_prep_job(source: dict[str, Any], given: str, options: dict[str, str]) -> None:
    pod = prep_pod("sentence_transformer", {"spec.source": source})
    parsed = build_parser("prepare").parse_args(pod["containers"][0]["args"])
    assert parsed.source == given
    kept = {name: getattr(parsed, name) for name in ("sha256", "region", "revision")}
    assert {name: value for name, value in kept.items() if value} == options


def test_label_sets_reach_the_prep_job_as_arguments_and_one_read_only_volume() -> None:
    sets = [
        {"name": "cities", "sha256": "1" * 64, "configMapRef": {"name": "a", "key": "cities.json"}},
        {"name": "catalogue", "sha256": "2" * 64, "url": "https://web/a@b.jsonl?x=1"},
        {"name": "people", "sha256": "3" * 64, "configMapRef": {"name": "b"}},
        {
            "name": "hub",
            "sha256": "4" * 64,
            "huggingFace": {"repo": "a/b", "revision": "5" * 40, "path": "c/d@e.jsonl"},
        },
        {
            "name": "model",
            "sha256": "4" * 64,
            "huggingFace": {"type": "model", "repo": "a/b", "revision": "5" * 40, "path": "my labels.json"},
        },
        {"name": "store", "sha256": "4" * 64, "s3": {"uri": "s3://catalogues/v1/a@b.jsonl"}},
    ]
    pod = prep_pod("deberta_gliner_linker", {"spec.labelSets": sets})
    parsed = build_parser("prepare").parse_args(pod["containers"][0]["args"])
    assert parsed.label_set == [
        f"cities=/label-sets/cities@{'1' * 64}",
        f"catalogue=https://web/a@b.jsonl?x=1@{'2' * 64}",
        f"people=/label-sets/people@{'3' * 64}",
        f"hub=hf://datasets/a/b@{'5' * 40}/c/d@e.jsonl@{'4' * 64}",
        f"model=hf://a/b@{'5' * 40}/my labels.json@{'4' * 64}",
        f"store=s3://catalogues/v1/a@b.jsonl@{'4' * 64}",
    ]
    (volume,) = [found for found in pod["volumes"] if found["name"] == "label-sets"]
    assert volume["projected"]["sources"] == [
        {"configMap": {"name": "a", "items": [{"key": "cities.json", "path": "cities"}]}},
        {"configMap": {"name": "b", "items": [{"key": "labels.jsonl", "path": "people"}]}},
    ]
    (mount,) = [found for found in pod["containers"][0]["volumeMounts"] if found["name"] == "label-sets"]
    assert mount == {"name": "label-sets", "mountPath": "/label-sets", "readOnly": True}


def test_label_sets_are_requested_as_the_checkpoint_is_or_else_with_the_identity_of_the_pod() -> None:
    settings = SETTINGS.model_copy(update={"prep_service_accounts": ["reader"]})
    account = {"spec.prepare.serviceAccountName": "reader"}
    hub = {"repo": "a/b", "revision": "2" * 40, "endpoint": "https://hub", "tokenSecretRef": {"name": "t"}}
    keys = {"uri": "s3://models/a", "endpoint": "https://store", "credentialsSecretRef": {"name": "s"}}
    sets = [{"name": "store", "sha256": "4" * 64, "s3": {"uri": "s3://catalogues/a"}}]

    def parsed(source: Json, *more: Json, label_sets: list[Json] = sets) -> Any:
        fields = {"spec.source": source, "spec.labelSets": label_sets}
        for each in more:
            fields |= each
        pod = prep_pod("deberta_gliner_linker", fields, settings)
        return build_parser("prepare").parse_args(pod["containers"][0]["args"])

    # the token of a hub is for its sets, too, and an identity for an object store is there where there is one to read
    found = parsed({"huggingFace": hub}, account)
    assert (found.endpoint, found.token_file, found.ambient_credentials) == ("https://hub", Path(TOKEN), True)
    assert not parsed({"huggingFace": hub}, account, label_sets=[]).ambient_credentials
    assert not parsed({"huggingFace": hub}).ambient_credentials
    assert parsed({"s3": {"uri": "s3://models/a"}}, account, label_sets=[]).ambient_credentials
    # the keys of the checkpoint's store are those of its sets
    found = parsed({"s3": keys}, account)
    assert (found.endpoint, found.credentials_folder, found.ambient_credentials) == (
        "https://store",
        Path("/run/secrets/source"),
        False,
    )


def test_parameters_of_the_plugin_reach_the_prep_job() -> None:
    pod = prep_pod("mt5_gliner", {"spec.prepare.parameters": {"wordsSplitter": "whitespace"}})
    parsed = build_parser("prepare").parse_args(pod["containers"][0]["args"])
    assert parsed.parameter == ["wordsSplitter=whitespace"]
