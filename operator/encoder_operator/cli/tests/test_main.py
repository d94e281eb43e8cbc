"""The commands without a cluster: what a user sees who has no kubeconfig."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from encoder_operator.cli import main
from encoder_operator.revisions.hashing import Json
from encoder_operator.tests.harness import encoder_model, with_fields


def run(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command with an empty home and none of the operator's variables but those given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ENCODER_", "KUBE"))}
    command = [sys.executable, "-m", "encoder_operator", *arguments]
    environment = kept | {"HOME": str(home)} | variables
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)


def kubeconfig(cluster: dict[str, str], user: dict[str, Any]) -> str:
    """Return a kubeconfig of one context, whose API server is not there."""
    return yaml.safe_dump(
        {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"} | cluster}],
            "users": [{"name": "u", "user": user}],
        }
    )


@pytest.mark.parametrize("command", ["doctor", "gc", "run", "smoke-test --namespace demo"])
def test_without_a_kubeconfig_a_command_reports_it_in_one_line(tmp_path: Path, command: str) -> None:
    done = run(tmp_path, *command.split())
    assert done.returncode == 78
    errors = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(errors) == 1
    assert "no access to a cluster" in errors[0]
    assert "set KUBECONFIG" in errors[0]


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", "AttributeError"),
        ("clusters: [", "expected the node content"),
        ("kind: Config", "KeyError: 'clusters'"),
        (
            kubeconfig({"certificate-authority": "/nowhere/ca.crt"}, {"token": "t"}),
            "a certificate or key cannot be read",
        ),
        (kubeconfig({"certificate-authority-data": "bm9uZQ=="}, {"token": "t"}), "a certificate or key cannot be read"),
    ],
    ids=["empty", "no YAML", "no clusters", "no CA file", "no certificate"],
)
def test_an_invalid_kubeconfig_is_reported_in_one_line(tmp_path: Path, text: str, reported: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    done = run(tmp_path, "doctor", KUBECONFIG=str(path))
    assert done.returncode == 78
    (line,) = done.stderr.splitlines()
    assert line.startswith("no access to a cluster: ")
    assert reported in line
    assert str(path) in line


def test_doctor_reports_a_credential_plugin_that_fails(tmp_path: Path) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "/nowhere/plugin"}
    path = tmp_path / "config"
    path.write_text(kubeconfig({}, {"exec": plugin}))
    done = run(tmp_path, "doctor", KUBECONFIG=str(path))
    assert (done.returncode, done.stderr) == (1, "")
    assert "the API server cannot be reached" in done.stdout
    assert "/nowhere/plugin" in done.stdout
    assert "check the kubeconfig" in done.stdout


@pytest.mark.parametrize(("accelerator", "suffix"), [("cpu", "cpu"), ("nvidia", "cuda")])
def test_render_needs_no_settings(tmp_path: Path, accelerator: str, suffix: str) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(yaml.safe_dump(encoder_model(accelerator=accelerator)))
    done = run(tmp_path, "render", str(file))
    assert done.returncode == 0, done.stderr
    (deployment,) = [found for found in yaml.safe_load_all(done.stdout) if found["kind"] == "Deployment"]
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image.startswith("encoder-operator/engine-sentence_transformer:")
    assert image.endswith(f"-{suffix}")


def test_render_takes_a_list_as_kubectl_prints_it(tmp_path: Path) -> None:
    models = [encoder_model() | {"metadata": {"name": name, "namespace": "demo"}} for name in ("one", "two")]
    file = tmp_path / "backup.yaml"
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": models}))
    done = run(tmp_path, "render", str(file))
    assert done.returncode == 0, done.stderr
    found = [(one["kind"], one["metadata"]["name"].partition("-")[0]) for one in yaml.safe_load_all(done.stdout)]
    assert [kind for kind, name in found if name == "one"] == [kind for kind, name in found if name == "two"]
    assert ("Deployment", "one") in found


def test_render_quotes_what_kubectl_would_read_as_a_number(tmp_path: Path) -> None:
    values = ["1e3", "12E45", "1.5e3", ".5", "0o17", "0x1F", "1_000"]
    live = encoder_model(env=[{"name": f"V{number}", "value": value} for number, value in enumerate(values)])
    file = tmp_path / "model.yaml"
    file.write_text(yaml.safe_dump(live))
    printed = run(tmp_path, "render", str(file)).stdout
    assert {value for value in values if f"value: '{value}'\n" not in printed} == set()


def test_render_reads_a_field_without_a_value_as_the_api_server_does(tmp_path: Path) -> None:
    printed = []
    plain = with_fields({"spec.prepare": {"tolerations": [{"key": "a"}]}})
    nulls: Json = {
        "metadata": {"labels": None, "annotations": None},
        "spec": {
            "labelSets": None,
            "parity": {"inputs": None},
            "prepare": {"tolerations": [{"key": "a", "value": None}]},
        },
    }
    for fields in ({}, nulls):
        live = {key: value | fields.get(key, {}) if isinstance(value, dict) else value for key, value in plain.items()}
        file = tmp_path / "model.yaml"
        file.write_text(yaml.safe_dump(live))
        done = run(tmp_path, "render", str(file))
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0] == printed[1]


@pytest.mark.parametrize(
    ("spec", "words"), [("plugin: x", "invalid JSON: Expecting value"), ("[]", "it must be a JSON object")]
)
def test_a_spec_that_is_no_json_object_is_refused(spec: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.build_parser().parse_args(["smoke-test", "--namespace", "demo", "--spec", spec])
    assert f"argument --spec: {words}" in capsys.readouterr().err


STOPPED = """
import atexit, sys
from encoder_operator.cli import main

async def run(parsed, settings):
    sys.stdout.write("flushed ")
    return 3

main._with_cluster = run
atexit.register(lambda: print("finalised"))
print(f"returned {main.main(sys.argv[1:])}")
"""


@pytest.mark.parametrize(
    ("command", "printed", "code"), [("run", "flushed ", 3), ("doctor", "flushed returned 3\nfinalised\n", 0)]
)
def test_the_operator_ends_with_its_work_and_nothing_of_the_interpreter_is_waited_for(
    command: str, printed: str, code: int
) -> None:
    ended = subprocess.run([sys.executable, "-c", STOPPED, command], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.returncode) == (printed, code)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["crd --print", "--help"])
def test_an_output_that_cannot_be_written_is_reported_in_one_line(command: str, unbuffered: str) -> None:
    variables = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    line = [sys.executable, "-m", "encoder_operator", *command.split()]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, env=variables, timeout=60)
    assert done.returncode == 74
    assert done.stderr == "standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("doctor", signal.SIGINT),
        ("gc", signal.SIGINT),
        ("smoke-test --namespace demo", signal.SIGINT),
        ("smoke-test --namespace demo", signal.SIGTERM),
    ],
)
def test_a_command_that_is_interrupted_says_so_in_one_line(
    tmp_path: Path, command: str, number: signal.Signals
) -> None:
    # an API server that accepts a connection, and answers nothing
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        path = tmp_path / "config"
        path.write_text(kubeconfig({"server": f"http://127.0.0.1:{server.getsockname()[1]}"}, {"token": "t"}))
        process = subprocess.Popen(
            [sys.executable, "-m", "encoder_operator", *command.split()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"KUBECONFIG": str(path)},
            # a shell lets its background jobs, such as tests, ignore Ctrl-C
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        connection, _ = server.accept()
        with connection:
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "interrupted\n")
