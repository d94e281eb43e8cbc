"""The arguments of `kubectl encoders`, with a kubectl that prints its own. Against an API server: e2e/api/test_kubectl_plugin.py."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[3] / "kubectl-encoders"
TABLE = "get encodermodels -o wide"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a kubectl that knows no EncoderModel called nobody."""
    program = tmp_path / "kubectl"
    program.write_text('#!/bin/sh\ncase "$*" in *nobody*) echo NotFound >&2; exit 1 ;; esac\necho "$*"\n')
    program.chmod(0o755)
    return tmp_path


def encoders(folder: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        ["sh", str(PLUGIN), *arguments],
        capture_output=True,
        text=True,
        timeout=20,
        env={**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"},
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("-n", "prod", "--context=a b", "status"),
        ("status", "--context", "a b", "-n=prod"),
        ("-nprod", "status", "--context=a b"),
        ("--namespace", "prod", "status", "--context", "a b"),
    ],
)
def test_namespace_and_context_may_stand_anywhere(folder: Path, arguments: tuple[str, ...]) -> None:
    assert encoders(folder, *arguments) == (0, f"--namespace=prod --context=a b {TABLE}\n")


def test_an_action_is_for_the_namespace_behind_it(folder: Path) -> None:
    code, called = encoders(folder, "retry", "minilm", "-n", "prod")
    assert code == 0
    assert called.startswith("--namespace=prod annotate encodermodel minilm encoders.dev/retry=")


def test_options_of_logs_are_kept_in_their_order(folder: Path) -> None:
    code, called = encoders(folder, "logs", "minilm", "serve", "-f", "-n", "prod", "--since", "1h")
    assert (code, called.endswith(" --tail=100 -f --since 1h\n"), called.startswith("--namespace=prod logs ")) == (
        0,
        True,
        True,
    )


def test_models_of_all_namespaces_are_listed(folder: Path) -> None:
    assert encoders(folder, "status", "-A") == (0, f"{TABLE} --all-namespaces\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("retry", "minilm", "other"), "unexpected argument other"),
        (("update", "minilm", "--all"), "unknown option --all"),
        (("parity", "-A"), "unknown option -A"),
        (("logs", "-f", "minilm"), "unknown option -f"),
        (("status", "-A", "minilm"), "unexpected argument minilm"),
        (("status", "-n"), "-n needs a value"),
        (("-n", "", "status"), "-n needs a value"),
    ],
)
def test_what_is_not_understood_is_refused_before_anything_is_done(
    folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert encoders(folder, *arguments) == (2, f"kubectl encoders: {message}\n")


@pytest.mark.parametrize("arguments", [("--help",), ("retry", "--help"), ("logs", "minilm", "prep", "-h")])
def test_help_may_be_asked_for_anywhere(folder: Path, arguments: tuple[str, ...]) -> None:
    code, printed = encoders(folder, *arguments)
    assert (code, printed.split(maxsplit=2)[:2]) == (0, ["kubectl", "encoders"])


def test_a_model_that_does_not_exist_has_no_verdict(folder: Path) -> None:
    assert encoders(folder, "parity", "nobody") == (1, "NotFound\n")
