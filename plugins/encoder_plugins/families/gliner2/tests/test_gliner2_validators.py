"""Regular expressions of a client: read as Python reads them, and stopped in time."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.gliner2 import validators
from encoder_plugins.families.gliner2.validators import Checker, Matcher, Validator


@pytest.fixture(scope="module")
def matcher() -> Iterator[Matcher]:
    found = Matcher()
    yield found
    found.close()


def rule(pattern: str, **options: Any) -> Validator:
    return Validator(**{"pattern": pattern, "flags": 2, "whole": True, "exclude": False, "path": "here", **options})


def test_all_expressions_must_accept_a_value(matcher: Matcher) -> None:
    rules = [rule("[a-c]+"), rule("b", whole=False, exclude=True)]
    assert Checker(matcher).accepted(rules, ["ac", "CA", "abc", "d", ""]) == [True, True, False, False, False]
    assert Checker(matcher).accepted([rule("é+", flags=0), rule(".")], ["é", "É", "éé", "e\u0301"]) == [
        True,
        False,
        False,
        False,
    ]


SLOW = {
    "matching": (rule("(a|aa)+$"), "a" * 60 + "b"),
    "compiling": (rule("".join(f"[\u0100-{chr(0xFF00 + place)}]" for place in range(400))), "a"),
}


@pytest.mark.parametrize("name", SLOW)
def test_what_takes_too_long_is_stopped_and_refused_and_others_go_on(matcher: Matcher, name: str) -> None:
    slow, value = SLOW[name]
    checker = Checker(matcher, 0.2)
    with pytest.raises(InvalidRequest) as caught:
        checker.accepted([slow], [value])
    assert caught.value.param == "here.pattern"
    assert "0.5 s" in str(caught.value)
    assert Checker(matcher).accepted([rule("a")], ["a", "b"]) == [True, False]


def test_the_expressions_of_a_request_share_its_time(matcher: Matcher) -> None:
    checker = Checker(matcher, 0.3)
    slow = rule("(?:x+x+)+y", whole=False)
    assert checker.accepted([slow], ["x" * 14]) == [False]
    with pytest.raises(InvalidRequest, match="they take longer"):
        repeat(checker, slow)


def repeat(checker: Checker, slow: Validator) -> None:
    for _ in range(1000):
        checker.accepted([slow], ["x" * 19])


class SlowMatcher(Matcher):
    """A matcher whose calls take given seconds of a processor, and which notes how many each was allowed."""

    def __init__(self, *took: float) -> None:
        super().__init__()
        self._took = list(took)
        self.allowed: list[float] = []

    def match(self, seconds: float, checks: Sequence[tuple[str, int, bool, Sequence[str]]]) -> list[Any]:
        self.allowed.append(seconds)
        return [self._took.pop(0), *super().match(20, checks)[1:]]


def test_each_call_is_allowed_the_half_second_that_those_before_it_left() -> None:
    matcher = SlowMatcher(0.25, 0.125, 0.25, 0)
    checker, rules = Checker(matcher), [rule("a"), rule("b")]
    checker.compile(rules)
    assert [checker.accepted(rules[:1], ["a", "b"]) for _ in range(2)] == [[True, False]] * 2
    assert matcher.allowed[:3] == [0.5, 0.25, 0.125]
    # next to nothing, but not 0, which would be no limit
    assert 0 < matcher.allowed[3] < 1e-5
    matcher.close()


def test_the_process_has_1_gib_and_ends_with_its_matcher() -> None:
    matcher = Matcher()
    assert Checker(matcher).accepted([rule("a")], ["a"]) == [True]
    process = matcher._process.process_id
    assert process is not None
    assert resource.prlimit(process, resource.RLIMIT_AS) == (1 << 30, 1 << 30)
    matcher.close()
    assert not Path(f"/proc/{process}").exists()


def test_a_process_that_does_not_advance_is_stopped_by_the_clock(
    matcher: Matcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    # long enough for a busy machine, and not so long that a client would wait for minutes
    assert 10 <= validators.MOST_SECONDS <= 60
    assert Checker(matcher).accepted([rule("a")], ["a"]) == [True]
    assert matcher._process.process_id is not None
    os.kill(matcher._process.process_id, signal.SIGSTOP)
    monkeypatch.setattr(validators, "MOST_SECONDS", 0.1)
    with pytest.raises(InvalidRequest, match="they take longer"):
        Checker(matcher).accepted([rule("a")], ["a"])
    monkeypatch.undo()
    assert Checker(matcher).accepted([rule("a")], ["a"]) == [True]


@pytest.mark.parametrize("pattern", ["(", "a**", r"\p{L}", "(?P<a>x)(?P<a>y)", "(" * 150 + ")" * 149, "a{5,2}"])
def test_what_is_no_expression_of_python_is_refused(matcher: Matcher, pattern: str) -> None:
    with pytest.raises(InvalidRequest, match="not a regular expression") as caught:
        Checker(matcher).compile([rule("a"), rule(pattern, path="there")])
    assert caught.value.param == "there.pattern"
