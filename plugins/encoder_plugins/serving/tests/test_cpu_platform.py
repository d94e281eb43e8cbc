"""The engine's process is forked from the server where it starts no workers of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import encoder_plugins
from encoder_plugins.serving import settings

METHOD = "VLLM_WORKER_MULTIPROC_METHOD"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("requested", "images", "executor", "method"),
    [("uni", False, "uni", "fork"), ("mp", False, "mp", "spawn"), ("uni", True, "mp", "spawn")],
)
def test_an_engine_of_texts_without_workers_is_forked(
    requested: str, images: bool, executor: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.platforms.cpu import CpuPlatform

    from encoder_plugins.serving.cpu_platform import ForkingCpuPlatform

    def vllms(cls: type, config: Any) -> None:
        os.environ[METHOD] = "spawn"
        config.parallel_config.distributed_executor_backend = "mp"

    monkeypatch.setenv(METHOD, "")
    monkeypatch.setattr(CpuPlatform, "check_and_update_config", classmethod(vllms))
    config: Any = SimpleNamespace(
        parallel_config=SimpleNamespace(distributed_executor_backend=requested),
        model_config=SimpleNamespace(is_multimodal_model=images),
    )
    ForkingCpuPlatform.check_and_update_config(config)
    assert (os.environ[METHOD], config.parallel_config.distributed_executor_backend) == (method, executor)


@pytest.mark.parametrize("value", [None, "0", "1"])
def test_only_a_server_that_forks_has_another_platform(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(settings.FORKED, raising=False)
    if value is not None:
        monkeypatch.setenv(settings.FORKED, value)
    assert (encoder_plugins.platform() is not None) == (value == "1")


def test_vllm_finds_the_platform_by_its_name() -> None:
    code = "from vllm.platforms import current_platform as found; print(type(found).__name__, found.is_cpu())"
    shown = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, settings.FORKED: "1", "VLLM_PLUGINS": "encoder"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.splitlines()[-1] == "ForkingCpuPlatform True"
