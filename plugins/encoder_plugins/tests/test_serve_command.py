"""How the engine is called: decided from values, so tested from values."""

import json
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins import catalog, serve
from encoder_plugins.__main__ import main
from encoder_plugins.errors import BadArgument
from encoder_plugins.limits import Limits
from encoder_plugins.serve import Service

PLUGIN = catalog.get("sentence_transformer")


def service(**changes: Any) -> Service:
    values: dict[str, Any] = {
        "artifact": Path("/artifacts/key"),
        "name": "minilm",
        "port": 8000,
        "accelerator": "cpu",
        "dtype": None,
        "max_model_len": None,
        "limits": Limits(),
        "arguments": (),
    }
    return Service(**values | changes)


def value_of(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


def test_the_engine_serves_the_model_of_the_artifact_by_its_name() -> None:
    command = serve.command(service(), PLUGIN, "/usr/bin/python")
    assert command[0] == "/usr/bin/python"
    assert value_of(command, "--model") == "/artifacts/key/model"
    assert value_of(command, "--served-model-name") == "minilm"
    assert value_of(command, "--io-processor-plugin") == "encoder"
    assert value_of(command, "--middleware") == "encoder_plugins.middleware.Door"
    assert "--max-model-len" not in command


def test_the_processor_is_told_plugin_and_limits() -> None:
    command = serve.command(service(limits=Limits(texts=3)), PLUGIN, "python")
    told = json.loads(value_of(command, "--additional-config"))["encoder"]
    assert told["plugin"] == "sentence_transformer"
    assert told["limits"]["texts"] == 3


@pytest.mark.parametrize(
    ("accelerator", "dtype", "expected"),
    [("cpu", None, "float32"), ("nvidia", None, "bfloat16"), ("nvidia", "float16", "float16")],
)
def test_the_number_format_is_the_plugins_unless_said(accelerator: str, dtype: str | None, expected: str) -> None:
    command = serve.command(service(accelerator=accelerator, dtype=dtype), PLUGIN, "python")
    assert value_of(command, "--dtype") == expected


def test_the_users_arguments_come_last_and_win() -> None:
    extra = ("--pooler-config", '{"pooling_type": "CLS"}')
    assert serve.command(service(arguments=extra), PLUGIN, "python")[-2:] == list(extra)


def test_the_environment_is_completed_and_never_overruled() -> None:
    found = serve.environment({"OMP_NUM_THREADS": "7", "HOME": "/tmp"}, service(), cores=2)
    assert found["OMP_NUM_THREADS"] == "7"
    assert found["HOME"] == "/tmp"
    assert found["HF_HUB_OFFLINE"] == "1"
    assert serve.environment({}, service(), cores=2)["OMP_NUM_THREADS"] == "2"
    assert "OMP_NUM_THREADS" not in serve.environment({}, service(accelerator="nvidia"), cores=2)


@pytest.mark.parametrize(
    ("affinity", "cpu_max", "threads"),
    [
        (8, "", 8),
        (8, "max 100000\n", 8),
        (8, "200000 100000\n", 2),
        (8, "150000 100000", 2),
        (2, "800000 100000", 2),
        (4, "1000 100000", 1),
    ],
)
def test_threads_follow_the_quota(affinity: int, cpu_max: str, threads: int) -> None:
    assert serve.usable_cores(affinity, cpu_max) == threads


def test_limits_come_from_the_command_line() -> None:
    assert serve.limits_from(["texts=3", "body_bytes=10"], 5) == Limits(texts=3, body_bytes=10, in_flight=5)


@pytest.mark.parametrize("assignment", ["text=3", "texts=", "texts=0", "texts=many", "texts"])
def test_a_limit_that_is_none_is_refused(assignment: str) -> None:
    with pytest.raises(BadArgument, match="--limit text"):
        serve.limits_from([assignment], None)


def test_a_changed_artifact_is_not_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "MANIFEST.json").write_text("{}")
    arguments = ["serve", str(tmp_path), "--digest", f"sha256:{'0' * 64}", "--name", "m", "--accelerator", "cpu"]
    assert main([*arguments, "--", "--enforce-eager"]) == 65
    assert "ChecksumMismatch" in capsys.readouterr().err


def test_list_shows_every_declaration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    assert [plugin["name"] for plugin in json.loads(capsys.readouterr().out)] == list(catalog.plugins())
