"""Label sets that are objects of a real S3 server: with the credentials of the checkpoint or the environment, checked, and resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.config import Config

from encoder_node import object_store
from encoder_node.object_store import ObjectStore
from encoder_plugins import errors
from encoder_plugins.artifact import label_sets
from encoder_plugins.artifact.label_sets import Label
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Credentials
from encoder_plugins.prep.tests import faulty_proxy
from encoder_plugins.prep.tests.fetched_sets import labels_of, of, sha256, sources

# a Go program; unit tests do without Go
pytestmark = pytest.mark.cluster

LABELS = [Label(f"E{number}", f"entity {number}") for number in range(2000)]
CONTENT = "\n".join(json.dumps({"id": label.id, "label": label.text}) for label in LABELS).encode()
DIGEST = sha256(CONTENT)
SET = f"a=s3://catalogues/v1/labels.jsonl@{DIGEST}"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store.running(tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture
def owner(store: ObjectStore) -> Any:
    """The client of the bucket's owner; the bucket has one set, once with its sha256 and once without."""
    session = botocore.session.Session()
    session.set_credentials(store.access_key, store.secret_key)
    addressing = Config(s3={"addressing_style": "path"})
    client = session.create_client("s3", region_name="us-east-1", endpoint_url=store.address, config=addressing)
    if not client.list_buckets().get("Buckets"):
        client.create_bucket(Bucket="catalogues")
    client.put_object(Bucket="catalogues", Key="v1/labels.jsonl", Body=CONTENT)
    client.put_object(Bucket="catalogues", Key="v1/summed.jsonl", Body=CONTENT, ChecksumAlgorithm="SHA256")
    return client


@pytest.fixture
def options(store: ObjectStore, owner: Any) -> dict[str, Any]:
    """What a request for a checkpoint in the same store has."""
    credentials = Credentials(store.access_key, store.secret_key)
    return {"source": "s3://models/demo", "endpoint": store.address, "credentials": credentials, "stall_seconds": 20.0}


def test_a_set_is_taken_from_the_store_of_the_checkpoint(
    options: dict[str, Any], tmp_path: Path, progress: Progress, lines: list[dict[str, object]]
) -> None:
    sets, _ = of(tmp_path / "key", *sources(SET, f"b=s3://catalogues/v1/summed.jsonl@{DIGEST}"), **options)
    sets.bring(progress)
    assert labels_of(sets) == {"a": LABELS, "b": LABELS}
    downloads = {line["message"]: line["total"] for line in lines if line["phase"] == "download" and "message" in line}
    assert downloads == {f"label set {name}": len(CONTENT) for name in "ab"}


def test_where_the_checkpoint_is_from_no_bucket_endpoint_and_identity_are_those_of_the_environment(
    store: ObjectStore, options: dict[str, Any], tmp_path: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", store.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", store.secret_key)
    # the endpoint is that of the hub
    hub = {"source": "demo/tiny", "endpoint": "http://127.0.0.1:9"}
    sets, _ = of(tmp_path / "key", *sources(SET), **hub, ambient_credentials=True)
    sets.bring(progress)
    assert labels_of(sets) == {"a": LABELS}
    with pytest.raises(errors.AuthFailed, match="label set a: s3 answered 403"):
        of(tmp_path / "anonymous", *sources(SET), **hub)[0].bring(progress)


@pytest.mark.parametrize(
    ("place", "changes", "error", "message"),
    [
        (f"catalogues/none.jsonl@{DIGEST}", {}, errors.SourceFileNotFound, "label set cities: 127.0.0.1 answered 404"),
        (f"nowhere/labels.jsonl@{DIGEST}", {}, errors.SourceFileNotFound, "label set cities: 127.0.0.1 answered 404"),
        (f"Not A Bucket/labels.jsonl@{DIGEST}", {}, errors.Unsupported, "label set cities: "),
        (
            f"catalogues/v1/labels.jsonl@{DIGEST}",
            {"credentials": None},
            errors.AuthFailed,
            "label set cities: 127.0.0.1",
        ),
        (
            f"catalogues/v1/labels.jsonl@{DIGEST}",
            {"credentials": Credentials("encoder-tests", "wrong-secret")},
            errors.AuthFailed,
            "label set cities: 127.0.0.1 answered 403",
        ),
        (
            f"catalogues/v1/labels.jsonl@{DIGEST}",
            {"region": "no region"},
            errors.Unsupported,
            "label set cities: no such S3",
        ),
        (
            f"catalogues/v1/labels.jsonl@{'0' * 64}",
            {},
            errors.ChecksumMismatch,
            f"label set cities hashes to {DIGEST}, exp",
        ),
        (
            f"catalogues/v1/summed.jsonl@{'0' * 64}",
            {},
            errors.ChecksumMismatch,
            f"hashes to {DIGEST} at 127.0.0.1, expected",
        ),
    ],
)
def test_a_refusal_has_its_reason_names_the_set_and_leaves_nothing(
    options: dict[str, Any],
    tmp_path: Path,
    progress: Progress,
    lines: list[dict[str, object]],
    place: str,
    changes: dict[str, Any],
    error: type[errors.PrepareError],
    message: str,
) -> None:
    sets, staging = of(tmp_path / "key", *sources(f"cities=s3://{place}"), **options | changes)
    with pytest.raises(error) as caught:
        sets.bring(progress)
    assert type(caught.value) is error
    assert str(caught.value).startswith("label set cities")
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)
    assert list(staging.partial.glob("*")) == []
    # what a store states of an object refuses it before it is downloaded
    assert any(line["phase"] == "download" for line in lines) == (" hashes to" in message)


def test_a_set_above_the_limit_is_refused_before_it_is_downloaded(
    options: dict[str, Any],
    tmp_path: Path,
    progress: Progress,
    lines: list[dict[str, object]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(label_sets, "MOST_BYTES", len(CONTENT) - 1)
    limit = f"label set a: {len(CONTENT)} bytes; the limit is {len(CONTENT) - 1}"
    with pytest.raises(errors.Unsupported, match=limit):
        of(tmp_path / "key", *sources(SET), **options)[0].bring(progress)
    assert {line["phase"] for line in lines} == {"listing"}


def test_a_cut_connection_goes_on_where_it_broke(
    options: dict[str, Any], store: ObjectStore, tmp_path: Path, progress: Progress, naps: list[float]
) -> None:
    with faulty_proxy.in_front_of(store.address) as proxy:
        proxy.about, proxy.cut_after, proxy.times = "labels.jsonl", 3000, 2
        sets, _ = of(tmp_path / "key", *sources(SET), **options | {"endpoint": proxy.address})
        sets.bring(progress)
    assert labels_of(sets) == {"a": LABELS}
    assert len(proxy.ranges()) == 2
    assert not any(text.startswith("bytes=0-") for text in proxy.ranges())


def test_an_object_that_is_replaced_during_the_download_is_noticed(
    options: dict[str, Any], owner: Any, tmp_path: Path
) -> None:
    def emit(line: dict[str, object]) -> None:
        if line["phase"] == "download":
            owner.put_object(Bucket="catalogues", Key="v1/labels.jsonl", Body=b'["another"]')

    with pytest.raises(errors.ChecksumMismatch, match="label set a was changed in the bucket"):
        of(tmp_path / "key", *sources(SET), **options)[0].bring(Progress(emit))
