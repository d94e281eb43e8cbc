"""An answer of a library is cached while nothing it was computed from has changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from encoder_checkpoints import answer_cache
from encoder_checkpoints.original import OriginalError
from encoder_plugins.prep import reference_environment


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library that is never started, whose process has imported one module of ours; returns that module."""
    module, lock = tmp_path / "ours" / "oracle.py", tmp_path / "requirements.lock"
    module.parent.mkdir()
    module.write_text("version = 1")
    lock.write_text("library==1")
    monkeypatch.setenv("ENCODER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(answer_cache.VARIABLE, raising=False)
    monkeypatch.delenv(reference_environment.VARIABLE, raising=False)
    monkeypatch.setattr(answer_cache, "roots", lambda: (module.parent,))
    monkeypatch.setattr(answer_cache, "original", lambda _: SimpleNamespace(call=lambda _: ["0/oracle.py"]))
    monkeypatch.setattr(reference_environment, "lock_file", lambda _: lock)
    return module


@pytest.fixture
def computes(library: Path) -> Callable[..., bool]:
    """Return whether the library had to compute the answer to a value."""

    def computes(given: Any) -> bool:
        computed: list[Any] = []

        def compute() -> str:
            computed.append(given)
            return "answer"

        assert answer_cache.cached("any", given, compute) == "answer"
        return bool(computed)

    return computes


def test_the_same_is_computed_once(computes: Callable[..., bool]) -> None:
    given = ("module:function", [np.array([1, 2], np.float32)], {"text": "x", "limits": [1, None, 2.5, b"z"]})
    assert [computes(given), computes(given)] == [True, False]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["a", "b"], ["ab"]),
        ([["a"], "b"], [["a", "b"]]),
        ({"a": ["b"]}, {"a": "b"}),
        ([1], ["1"]),
        ([1], [True]),
        ([0.1], [0.1 + 1e-17 + 1e-16]),
        (np.array([1, 2], np.float32), np.array([[1, 2]], np.float32)),
        (np.array([1], np.float32), np.array([1], np.float64)),
        ("/no/such/file", "/no/such/other"),
        # a word of a text, and not what the machine has there
        ("/", "/root"),
    ],
)
def test_what_differs_is_computed_by_itself(one: Any, other: Any, computes: Callable[..., bool]) -> None:
    assert [computes(one), computes(other), computes(one)] == [True, True, False]


@pytest.mark.parametrize("as_text", [False, True])
def test_a_path_stands_for_its_content(as_text: bool, tmp_path: Path, computes: Callable[..., bool]) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        (folder / "below").mkdir(parents=True)
        (folder / "below" / "weights").write_text("1")
    named: list[Any] = [str(first), str(second)] if as_text else [first, second]
    assert [computes(named[0]), computes(named[1])] == [True, False]
    (first / "below" / "weights").write_text("2")
    assert [computes(named[0]), computes(named[1])] == [True, False]
    (second / "below" / "weights").rename(second / "weights")
    assert computes(named[1])


def test_a_change_of_code_or_of_the_lock_is_noticed(
    library: Path, tmp_path: Path, computes: Callable[..., bool]
) -> None:
    assert [computes(1), computes(1)] == [True, False]
    library.write_text("version = 2")
    assert [computes(1), computes(1)] == [True, False]
    (tmp_path / "requirements.lock").write_text("library==2")
    assert [computes(1), computes(1)] == [True, False]
    library.unlink()
    assert computes(1)


def test_all_is_computed_anew_on_demand(computes: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> None:
    assert computes(1)
    monkeypatch.setenv(answer_cache.VARIABLE, "1")
    assert computes(1)


def test_a_ready_environment_is_not_cached(computes: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> None:
    assert computes(1)
    monkeypatch.setenv(reference_environment.VARIABLE, "/opt/reference")
    assert [computes(1), computes(1)] == [True, True]


def test_an_error_is_not_cached(library: Path, computes: Callable[..., bool]) -> None:
    def fail() -> Any:
        raise OriginalError("ValueError: no")

    with pytest.raises(OriginalError, match="no"):
        answer_cache.cached("any", 1, fail)
    assert computes(1)


def test_what_has_no_digest_is_an_error(computes: Callable[..., bool]) -> None:
    with pytest.raises(TypeError, match="digest of a set"):
        computes({1, 2})
