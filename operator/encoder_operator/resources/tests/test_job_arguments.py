"""What the operator's Jobs say, against what the commands in them understand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from encoder_plugins.__main__ import _parser

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
    parsed = _parser("prepare").parse_args(given)
    # each value has come where it was meant to: nothing is left for what comes without a name
    assert len(str(parsed.output).rpartition("/")[2]) == 64
    assert parsed.termination_log == Path("/dev/termination-log")
    assert parsed.source.startswith(("s3://", "https://", "http://", "/source")) or parsed.source.count("/") == 1


@pytest.mark.parametrize("name", CASES)
def test_parity_understands_its_job(name: str) -> None:
    (given,) = arguments("parity", name)
    parsed = _parser("parity").parse_args(given)
    assert parsed.url.startswith("http://")
    assert parsed.binding["revision"]
