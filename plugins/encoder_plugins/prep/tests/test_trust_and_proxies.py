"""What a company's network requires of prep: a CA of its own, and a proxy; and what a branch and a checkpoint's code need."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoder_checkpoints.original import original
from encoder_plugins import errors
from encoder_plugins.artifact import manifest
from encoder_plugins.artifact.reference import Recording
from encoder_plugins.cli import prepare as prepare_command
from encoder_plugins.models.sentence_transformer.tests import tiny
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Request
from encoder_plugins.prep.tests import web_server

Requested = Callable[..., Request]


@pytest.fixture
def listed(checkpoint: Path) -> Path:
    """The checkpoint's folder with its list of files."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(checkpoint)}\n" for path in files]
    (checkpoint / "SHA256SUMS").write_text("".join(lines))
    return checkpoint


def command(source: str, output: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Run prep as its Job does, in a process of its own: what is trusted is a matter of the process."""
    program = (
        "import argparse, sys; from encoder_plugins.cli import prepare as command; parser = argparse.ArgumentParser();"
        "command.add_arguments(parser); sys.exit(command.run(parser.parse_args()))"
    )
    arguments = [sys.executable, "-c", program, "sentence_transformer", source, str(output), "--stall-seconds", "4"]
    finished = subprocess.run([*arguments, *options], capture_output=True, text=True, check=False)
    return finished.returncode, json.loads(finished.stdout.splitlines()[-1])


def test_a_private_ca_is_trusted_when_it_is_given(tmp_path: Path, listed: Path, certificate: tuple[Path, Path]) -> None:
    # what refuses the checkpoint at the end is enough to show that it was read: nothing is recorded here
    (listed / "1_Pooling" / "config.json").unlink()
    pinned = hashlib.sha256((listed / "SHA256SUMS").read_bytes()).hexdigest()
    with web_server.running(listed, certificate) as server:
        source = f"{server.address}/SHA256SUMS"
        # five tries would take 15 s
        refused = f"import encoder_plugins.prep.sources.retry as p; p.time.sleep = lambda _: None; {CONTEXT}"
        without = subprocess.run(
            [sys.executable, "-c", refused, source, pinned, str(tmp_path / "a")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "CERTIFICATE_VERIFY_FAILED" in without.stdout
        status, message = command(
            source, tmp_path / "volume" / "key", "--sha256", pinned, "--ca-file", str(certificate[0])
        )
    assert (status, message["code"]) == (44, "FileNotFound"), message
    assert "1_Pooling" in message["message"]


CONTEXT = """
import sys
from pathlib import Path
from encoder_plugins import catalog
from encoder_plugins.errors import PrepareError
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.request import Request
from encoder_plugins.prep.progress import Progress
request = Request(plugin=catalog.get("sentence_transformer"), source=sys.argv[1], revision=sys.argv[2], output=Path(sys.argv[3]) / "key")
try:
    prepare(request, Progress(lambda line: None))
except PrepareError as error:
    print(error)
"""


@pytest.mark.parametrize("content", ["", "no certificate", None])
def test_what_is_not_a_ca_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ca.crt"
    if content is not None:
        path.write_text(content)
    status, message = command("org/name", tmp_path / "volume" / "key", "--ca-file", str(path))
    assert (status, message["code"]) == (69, "Unsupported")
    assert "certificates" in message["message"]


@pytest.fixture
def proxy(listed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[web_server.WebServer]:
    with web_server.running(listed) as server:
        monkeypatch.setenv("HTTP_PROXY", server.address)
        monkeypatch.setenv("NO_PROXY", "")
        monkeypatch.setenv("http_proxy", server.address)
        monkeypatch.setenv("no_proxy", "")
        yield server


def test_a_proxy_of_the_environment_is_used(
    requested: Requested, progress: Progress, listed: Path, proxy: web_server.WebServer
) -> None:
    pinned = hashlib.sha256((listed / "SHA256SUMS").read_bytes()).hexdigest()
    # nobody has this name: only the proxy can answer
    request = requested("http://models.invalid/SHA256SUMS", revision=pinned, endpoint=None)
    prepare(request, progress)
    assert ("GET", "/SHA256SUMS", "") in proxy.requests


def test_the_object_store_is_reached_through_the_proxy_too(
    requested: Requested, progress: Progress, proxy: web_server.WebServer, naps: list[float]
) -> None:
    request = requested("s3://models/tiny", revision=None, endpoint="http://store.invalid")
    with pytest.raises(errors.SourceFileNotFound):
        prepare(request, progress)
    assert any(path.startswith("/models") for _, path, _ in proxy.requests)


def test_a_branch_needs_leave_and_is_recorded_as_the_commit_it_named(
    requested: Requested, progress: Progress, hub: Any
) -> None:
    with pytest.raises(errors.Unsupported, match="--allow-mutable-revision"):
        prepare(requested(revision="main"), progress)
    request = requested(revision="v2", allow_mutable_revision=True)
    prepared = prepare(request, progress)
    assert prepared.revision == hub.second_revision
    assert manifest.read(request.output).source["revision"] == hub.second_revision
    # found again without resolving the branch
    assert (
        prepare(requested(revision="v2", allow_mutable_revision=True, endpoint="http://127.0.0.1:9"), progress)
        == prepared
    )


def test_a_branch_that_is_not_there_is_named(requested: Requested, progress: Progress) -> None:
    with pytest.raises(errors.RevisionNotFound):
        prepare(requested(revision="nowhere", allow_mutable_revision=True), progress)


@pytest.mark.parametrize(
    ("source", "option"),
    [
        ("org/name", "--sha256"),
        ("/folder", "--sha256"),
        ("https://host/x.tar", "--revision"),
        ("s3://b/x", "--revision"),
    ],
)
def test_a_pin_of_another_kind_of_source_is_refused(tmp_path: Path, source: str, option: str) -> None:
    parser = argparse.ArgumentParser()
    prepare_command.add_arguments(parser)
    arguments = parser.parse_args(["sentence_transformer", source, str(tmp_path / "key"), option, "0" * 64])
    with pytest.raises(errors.Unsupported, match=option):
        prepare_command._request(arguments)


@pytest.fixture
def with_code(tmp_path: Path) -> Path:
    """A checkpoint that brings code, of an encoder of vLLM's, which can run it; ours never do."""
    folder = tiny.build("qwen3", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    code = {"AutoConfig": "configuration_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"}
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": code}))
    (folder / "configuration_own.py").write_text(
        "from transformers import Qwen3Config\nclass OwnConfig(Qwen3Config):\n    pass\n"
    )
    (folder / "modeling_own.py").write_text(
        "from transformers import Qwen3Model\nfrom .configuration_own import OwnConfig\n"
        "class OwnModel(Qwen3Model):\n    config_class = OwnConfig\n"
    )
    return folder


def test_code_of_a_checkpoint_runs_only_with_leave(requested: Requested, progress: Progress, with_code: Path) -> None:
    with pytest.raises(errors.RemoteCodeRefused, match="auto_map"):
        prepare(requested(str(with_code)), progress)
    request = requested(str(with_code), trust_remote_code=True)
    trusted = []

    def record(*arguments: Any, trust_remote_code: bool = False, **_: Any) -> Recording:
        trusted.append(trust_remote_code)
        return Recording(cases=[{"id": "one"}], outputs={"one": {"vector": np.zeros(1, np.float32)}}, about={})

    prepare(request, progress, record)
    assert trusted == [True]
    assert (request.output / "model" / "modeling_own.py").is_file()
    assert manifest.verify(request.output).source["trust_remote_code"] is True
    # the same place can't hold the artifact that was made without
    with pytest.raises(errors.Unsupported, match="trust_remote_code"):
        prepare(requested(str(with_code)), progress)


def test_the_library_runs_the_code_of_the_checkpoint(with_code: Path) -> None:
    oracle = "encoder_plugins.families.embedding.tests.oracle:trusted_class"
    assert original("sentence_transformers").call(oracle, str(with_code)) == "OwnModel"


def test_a_plugin_without_use_for_code_says_so(requested: Requested, progress: Progress, checkpoint: Path) -> None:
    from dataclasses import replace

    from encoder_plugins import catalog

    request = replace(requested(str(checkpoint)), plugin=catalog.get("deberta_gliner"), trust_remote_code=True)
    with pytest.raises(errors.Unsupported, match="never runs"):
        prepare(request, progress)


def test_modules_of_the_repository_stay_refused_with_leave(
    requested: Requested, progress: Progress, checkpoint: Path
) -> None:
    modules = json.loads((checkpoint / "modules.json").read_text())
    modules[1]["type"] = "pooling_own.OwnPooling"
    (checkpoint / "modules.json").write_text(json.dumps(modules))
    (checkpoint / "pooling_own.py").write_text("")
    # the original library could, but no engine would do the same
    with pytest.raises(errors.RemoteCodeRefused, match="only modules of sentence-transformers"):
        prepare(requested(str(checkpoint), trust_remote_code=True), progress)


LISTING = """<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>models</Name>
<IsTruncated>false</IsTruncated><Contents><Key>tiny/config.json</Key><Size>2</Size></Contents></ListBucketResult>"""


def test_a_store_that_cannot_report_a_change_is_refused(
    requested: Requested, progress: Progress, tmp_path: Path
) -> None:
    with web_server.running(tmp_path) as server:
        server.bodies = {"/models": LISTING.encode()}
        request = requested("s3://models/tiny", revision=None, endpoint=server.address)
        with pytest.raises(errors.Unsupported, match="ETag"):
            prepare(request, progress)


@pytest.mark.parametrize(
    ("variables", "error", "says"),
    [
        ({}, errors.AuthFailed, "Unable to locate credentials; give"),
        ({"AWS_ACCESS_KEY_ID": "key"}, errors.AuthFailed, "missing: AWS_SECRET_ACCESS_KEY; give"),
        ({"AWS_PROFILE": "nobody"}, errors.AuthFailed, r"profile \(nobody\) could not be found; give"),
        # its agent may start later than this pod
        (
            {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:9/"},
            errors.DownloadFailed,
            "retrieving credentials",
        ),
    ],
)
def test_a_workload_without_an_identity_is_distinguished_from_a_wrong_address(
    requested: Requested,
    progress: Progress,
    monkeypatch: pytest.MonkeyPatch,
    naps: list[float],
    variables: dict[str, str],
    error: type[errors.PrepareError],
    says: str,
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in ({"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/nowhere"} | variables).items():
        monkeypatch.setenv(name, value)
    request = requested("s3://models/x", revision=None, endpoint="http://127.0.0.1:9", ambient_credentials=True)
    with pytest.raises(error, match=says):
        prepare(request, progress)
