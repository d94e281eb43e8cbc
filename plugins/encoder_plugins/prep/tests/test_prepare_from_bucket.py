"""prep against a real S3 server, over the real client, with a network between them that fails."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.config import Config

from encoder_node import object_store
from encoder_node.object_store import ObjectStore
from encoder_plugins import errors
from encoder_plugins.artifact import manifest
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Credentials, Request
from encoder_plugins.prep.tests import faulty_proxy
from encoder_plugins.prep.tests.meeting_faults import every_write

# a Go program; unit tests do without Go
pytestmark = pytest.mark.cluster

Requested = Callable[..., Request]
SOURCE = "s3://models/demo/tiny"
LARGE = "model.safetensors"


def client_of(store: ObjectStore, ca: Path | None = None) -> Any:
    session = botocore.session.Session()
    session.set_credentials(store.access_key, store.secret_key)
    return session.create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=store.address,
        verify=str(ca) if ca else None,
        config=Config(s3={"addressing_style": "path"}),
    )


def upload(client: Any, folder: Path, prefix: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            client.put_object(
                Bucket="models", Key=f"{prefix}{path.relative_to(folder).as_posix()}", Body=path.read_bytes()
            )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store.running(tmp_path_factory.mktemp("store"), versions=True) as running:
        client_of(running).create_bucket(Bucket="models")
        yield running


@pytest.fixture
def client(store: ObjectStore, models: Path) -> Any:
    """The owner's client, of a bucket that is as new."""
    client = client_of(store)
    for entry in client.list_objects_v2(Bucket="models").get("Contents", []):
        client.delete_object(Bucket="models", Key=entry["Key"])
    upload(client, models / "demo" / "tiny", "demo/tiny/")
    return client


@pytest.fixture
def bucket(store: ObjectStore, client: Any, requested: Requested) -> Requested:
    """A request for the bucket's checkpoint, with changes."""

    def request(source: str = SOURCE, **changes: Any) -> Request:
        given = {
            "revision": None,
            "endpoint": store.address,
            "credentials": Credentials(store.access_key, store.secret_key),
        }
        return requested(source, **given | changes)

    return request


def elsewhere(request: Request, name: str) -> Request:
    fields = {field: getattr(request, field) for field in Request.__slots__}
    return Request(**fields | {"output": request.output.with_name(name)})


def staged(request: Request) -> list[Path]:
    return [path for path in (request.output.parent / ".staging").rglob("*") if path.is_file()]


def test_what_a_bucket_holds_becomes_the_same_model_as_from_a_folder(
    bucket: Requested, requested: Requested, progress: Progress, models: Path, client: Any
) -> None:
    # some tools make folders visible
    client.put_object(Bucket="models", Key="demo/tiny/1_Pooling/", Body=b"")
    prepared = prepare(bucket(), progress)
    folder = elsewhere(requested(str(models / "demo" / "tiny")), "other")
    prepare(folder, progress)
    found, same = manifest.verify(bucket().output), manifest.verify(folder.output)
    assert [entry for entry in found.files if entry.path.startswith("model/")] == [
        entry for entry in same.files if entry.path.startswith("model/")
    ]
    origin = {"kind": "s3", "bucket": "models", "prefix": "demo/tiny", "revision": prepared.revision}
    assert found.source.items() >= origin.items()
    assert len(prepared.revision) == 64


def test_the_revision_is_that_of_the_content(bucket: Requested, progress: Progress, models: Path, client: Any) -> None:
    upload(client, models / "demo" / "tiny", "copy/of/it/")
    first = prepare(bucket(), progress)
    assert prepare(elsewhere(bucket("s3://models/copy/of/it/"), "copy"), progress).revision == first.revision
    client.put_object(Bucket="models", Key="demo/tiny/vocab.txt", Body=b"changed")
    assert prepare(elsewhere(bucket(), "changed"), progress).revision != first.revision
    # what is not taken plays no part
    client.put_object(Bucket="models", Key="copy/of/it/onnx/model.onnx", Body=b"changed")
    assert prepare(elsewhere(bucket("s3://models/copy/of/it"), "again"), progress).revision == first.revision


def test_a_complete_artifact_is_found_without_the_store(bucket: Requested, progress: Progress) -> None:
    first = prepare(bucket(), progress)
    assert prepare(bucket(endpoint="http://127.0.0.1:9"), progress) == first


@pytest.mark.fault(
    "the connection to the object store is cut in the middle of a file",
    "`Preparing`",
    "the next request is for the missing bytes only",
)
def test_a_cut_connection_goes_on_where_it_broke(
    bucket: Requested, progress: Progress, store: ObjectStore, naps: list[float]
) -> None:
    with faulty_proxy.in_front_of(store.address) as proxy:
        proxy.about, proxy.cut_after, proxy.times = LARGE, 3000, 2
        prepare(bucket(endpoint=proxy.address), progress)
    assert len(proxy.ranges()) == 2
    assert all(text.startswith("bytes=") and not text.startswith("bytes=0-") for text in proxy.ranges())
    manifest.verify(bucket().output)


@pytest.mark.complaint(1)
@pytest.mark.fault(
    "the object store stalls in the middle of a file",
    "`Stalled`",
    "the attempt ends after 120 s without a byte; the next one requests the missing bytes only",
)
def test_a_stall_ends_the_attempt_and_the_next_one_goes_on(
    bucket: Requested, progress: Progress, store: ObjectStore, naps: list[float]
) -> None:
    with faulty_proxy.in_front_of(store.address) as proxy:
        proxy.about, proxy.cut_after, proxy.stall = LARGE, 3000, True
        with pytest.raises(errors.Stalled, match=r"no byte .* for 1\.5 s"):
            prepare(bucket(endpoint=proxy.address, stall_seconds=1.5), progress)
        assert any(path.parent.name == "partial" and path.stat().st_size for path in staged(bucket()))
        proxy.cut_after, proxy.requests = 1 << 62, []
        prepare(bucket(endpoint=proxy.address), progress)
    # everything else was there: the large file's rest is the only content that was requested
    assert len(proxy.ranges()) == 1
    assert [
        request.split()[1] for request in proxy.requests if request.startswith("GET") and "list-type" not in request
    ] == [f"/models/demo/tiny/{LARGE}"]
    manifest.verify(bucket().output)


@pytest.mark.fault(
    "an object is replaced between two attempts to prepare it",
    "`Preparing`",
    "what was fetched of the former content is not used",
)
def test_bytes_of_a_former_content_are_not_used(
    bucket: Requested, progress: Progress, store: ObjectStore, client: Any, naps: list[float], models: Path
) -> None:
    with faulty_proxy.in_front_of(store.address) as proxy:
        proxy.about, proxy.cut_after, proxy.stall = LARGE, 3000, True
        with pytest.raises(errors.Stalled):
            prepare(bucket(endpoint=proxy.address, stall_seconds=1.5), progress)
    vocabulary = (models / "demo" / "tiny" / "vocab.txt").read_bytes()
    # as many bytes as before
    client.put_object(Bucket="models", Key="demo/tiny/vocab.txt", Body=vocabulary[::-1])
    weights = (models / "demo" / "tiny" / LARGE).read_bytes()
    client.put_object(Bucket="models", Key=f"demo/tiny/{LARGE}", Body=weights[:-4] + b"\0\0\0\0")
    prepare(bucket(), progress)
    assert (bucket().output / "model" / "vocab.txt").read_bytes() == vocabulary[::-1]
    assert (bucket().output / "model" / LARGE).read_bytes() == weights[:-4] + b"\0\0\0\0"


@pytest.mark.fault(
    "an object is replaced while it is prepared",
    "`ChecksumMismatch`",
    "nothing is published; another try (`encoders.dev/retry`) takes the new content",
)
def test_a_change_during_the_download_is_noticed(bucket: Requested, client: Any) -> None:
    def emit(line: dict[str, object]) -> None:
        if line["phase"] == "download" and line["bytes"] == 0:
            client.put_object(Bucket="models", Key=f"demo/tiny/{LARGE}", Body=b"something else")

    with pytest.raises(errors.ChecksumMismatch, match="changed in the bucket"):
        prepare(bucket(), Progress(emit))
    assert not bucket().output.exists()


def test_a_bucket_with_versions_gives_what_was_listed(
    bucket: Requested, client: Any, models: Path, progress: Progress
) -> None:
    client.put_bucket_versioning(Bucket="models", VersioningConfiguration={"Status": "Enabled"})
    tiny = models / "demo" / "tiny"
    upload(client, tiny, "versioned/")

    def emit(line: dict[str, object]) -> None:
        if line["phase"] == "download" and line["bytes"] == 0:
            client.put_object(Bucket="models", Key=f"versioned/{LARGE}", Body=b"something else")

    try:
        prepare(bucket("s3://models/versioned"), Progress(emit))
    finally:
        client.put_bucket_versioning(Bucket="models", VersioningConfiguration={"Status": "Suspended"})
    assert (bucket().output / "model" / LARGE).read_bytes() == (tiny / LARGE).read_bytes()


def test_a_checksum_that_the_store_keeps_is_compared(bucket: Requested, client: Any, models: Path) -> None:
    weights = (models / "demo" / "tiny" / LARGE).read_bytes()
    client.put_object(Bucket="models", Key=f"demo/tiny/{LARGE}", Body=weights, ChecksumAlgorithm="SHA256")
    named: set[str] = set()

    def emit(line: dict[str, object]) -> None:
        # files in the making are named by what is known of them
        named.update(path.name for path in staged(bucket()) if path.parent.name == "partial")

    prepare(bucket(), Progress(emit))
    assert hashlib.sha256(weights).hexdigest() in named


@pytest.mark.parametrize(
    ("source", "changes", "error"),
    [
        ("s3://nowhere/demo", {}, errors.RepositoryNotFound),
        ("s3://models/nothing/here", {}, errors.SourceFileNotFound),
        (SOURCE, {"credentials": Credentials("encoder-tests", "wrong-secret")}, errors.AuthFailed),
        (SOURCE, {"credentials": Credentials("nobody", "wrong-secret")}, errors.AuthFailed),
        (SOURCE, {"credentials": None}, errors.AuthFailed),
        ("s3://", {}, errors.Unsupported),
        ("s3://Not A Bucket/x", {}, errors.Unsupported),
        (SOURCE, {"endpoint": "no address"}, errors.Unsupported),
    ],
)
def test_a_refusal_has_its_reason_and_leaves_nothing(
    bucket: Requested, progress: Progress, source: str, changes: dict[str, Any], error: type[errors.PrepareError]
) -> None:
    request = bucket(source, **changes)
    with pytest.raises(error) as caught:
        prepare(request, progress)
    assert type(caught.value) is error
    assert "secret" not in str(caught.value)
    assert staged(request) == []


def test_a_workload_identity_signs_requests_without_a_secret(
    store: ObjectStore, bucket: Requested, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    # where a cloud's webhook or metadata server leaves credentials, botocore's chain finds them: the environment is its first part
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", store.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", store.secret_key)
    anonymous = bucket(credentials=None)
    with pytest.raises(errors.AuthFailed):
        prepare(anonymous, progress)
    assert prepare(bucket(credentials=None, ambient_credentials=True), progress).files > 0


def test_a_store_that_is_down_is_worth_another_try(bucket: Requested, progress: Progress, naps: list[float]) -> None:
    with pytest.raises(errors.DownloadFailed, match=r"127\.0\.0\.1"):
        prepare(bucket(endpoint="http://127.0.0.1:9"), progress)
    assert len(naps) == 4


def test_the_artifact_does_not_contain_the_identity(bucket: Requested, progress: Progress, store: ObjectStore) -> None:
    request = bucket()
    prepare(request, progress)
    assert store.secret_key not in repr(request)
    for secret in (store.secret_key, store.access_key):
        assert not any(secret.encode() in path.read_bytes() for path in request.output.rglob("*") if path.is_file())
    assert json.loads((request.output / "MANIFEST.json").read_bytes())["source"]["kind"] == "s3"


@pytest.mark.fault(
    "the prep pod is killed at any single write while it takes a checkpoint from an object store",
    "`Preparing`",
    "nothing half-made is visible; the next try makes the same artifact and leaves nothing else",
)
@pytest.mark.parametrize("fault", ["kill", pytest.param("full", marks=pytest.mark.soak)])
def test_a_prep_from_a_bucket_meets_a_fault_at_any_write(
    memory: Path, store: ObjectStore, client: Any, fault: str
) -> None:
    credentials = [store.access_key, store.secret_key]
    # every ninth: the rest is what a folder meets
    found = every_write(fault, SOURCE, memory, endpoint=store.address, credentials=credentials, step=9)
    assert found["calls"]["write"] > 20


def test_a_store_with_an_ca_of_its_own_and_the_whole_command(
    tmp_path: Path,
    models: Path,
    certificate: tuple[Path, Path],
    requested: Requested,
    progress: Progress,
    naps: list[float],
) -> None:
    options = ["--cert", str(certificate[0]), "--key", str(certificate[1])]
    with object_store.running(tmp_path / "store", options=options) as store:
        owner = client_of(store, certificate[0])
        owner.create_bucket(Bucket="models")
        upload(owner, models / "demo" / "tiny", "demo/tiny/")
        # what refuses the checkpoint at the end shows that all was read: nothing is recorded here
        owner.delete_object(Bucket="models", Key="demo/tiny/1_Pooling/config.json")
        keys = tmp_path / "keys"
        keys.mkdir()
        (keys / "AWS_ACCESS_KEY_ID").write_text(store.access_key)
        (keys / "AWS_SECRET_ACCESS_KEY").write_text(store.secret_key + "\n")
        command = [sys.executable, "-m", "encoder_plugins", "prepare", "sentence_transformer", SOURCE]
        command += [str(tmp_path / "volume" / "key"), "--endpoint", store.address, "--region", "us-east-1"]
        command += ["--credentials-folder", str(keys), "--stall-seconds", "30"]
        trusting = subprocess.run([*command, "--ca-file", str(certificate[0])], capture_output=True, text=True)
        credentials = Credentials(store.access_key, store.secret_key)
        with pytest.raises(errors.DownloadFailed, match="CERTIFICATE_VERIFY_FAILED"):
            prepare(requested(SOURCE, revision=None, endpoint=store.address, credentials=credentials), progress)
    assert json.loads(trusting.stdout.splitlines()[-1])["code"] == "FileNotFound", trusting
    assert "1_Pooling" in trusting.stdout.splitlines()[-1]
    assert trusting.returncode == 44
    assert store.secret_key not in trusting.stdout + trusting.stderr
