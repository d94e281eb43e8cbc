"""The measurement of the operator ends when the operator does, and says why."""

import asyncio
import os
from pathlib import Path

import pytest

from encoder_platform import bench_operator
from encoder_platform.operator_process import OperatorProcess


def test_a_measurement_ends_with_the_operators_last_lines(tmp_path: Path) -> None:
    # without an API server it starts, writes one line, and ends
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KUBE")}
    operator = OperatorProcess(
        environment | {"HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "none")}, tmp_path / "log"
    )
    operator.start()

    async def wait() -> None:
        await bench_operator._until(asyncio.Event(), asyncio.create_task(operator.watch_for_its_end()), seconds=300)

    with pytest.raises(AssertionError, match=r"(?s)the operator ended with 78.*no access to a cluster"):
        asyncio.run(wait())
