"""How many tokens a step of the engine may have: on a CPU, and while short requests come beside long ones. Pure.

A step that runs can't be overtaken: a short request waits for the rest of it, and then for its own. So while there are short requests,
long ones get a part of a step only, which is large enough to keep a GPU busy, and no part of the step after it, which has the short
ones alone. Without short ones nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# by vLLM's device type: a request of more tokens is a long one, and all long ones together get this many tokens of a step
LONG_TOKENS = {"cpu": 2_048, "cuda": 8_192}
# by vLLM's device type: tokens of any step, but for a longer prompt. What a larger step hands from one layer to the next no longer fits
# into a CPU's caches (`docs/benchmarks/gliner.md`)
ENOUGH_TOKENS = {"cpu": 2_048}
# after a short request, so long another one is expected
RECENT_SECONDS = 1.0

# the key in extra_kwargs
_LENGTH = "request_length"
_LONG, _UNKNOWN = "long", "unknown"


def parameters(tokens: int, *, complete: bool, most: int) -> dict[str, str]:
    """Return what the prompts of a request have in their ``extra_kwargs`` for the scheduler.

    Args:
        tokens: Those of the request, as far as they are made.
        complete: Whether these are all.
        most: Tokens of a request that is not a long one.
    """
    if tokens > most:
        return {_LENGTH: _LONG}
    return {} if complete else {_LENGTH: _UNKNOWN}


def is_long(extra: Mapping[str, Any] | None) -> bool:
    """Return whether a prompt with these ``extra_kwargs`` belongs to a long request."""
    return extra is not None and extra.get(_LENGTH) == _LONG


def is_short(extra: Mapping[str, Any] | None) -> bool:
    """Return whether a prompt with these ``extra_kwargs`` belongs to a request that is known to be a short one."""
    return extra is None or _LENGTH not in extra


def is_bounded(now: float, last_short: float) -> bool:
    """Return whether the next step has a bound, by the time of the last short request, in seconds of one clock."""
    return now - last_short < RECENT_SECONDS


def most_tokens(left: Iterable[int], most: int, enough: int) -> int:
    """Return how many tokens the next step may have where nothing else bounds it.

    Args:
        left: Of each prompt that waits or runs, the tokens to compute.
        most: Tokens that the engine can hold.
        enough: Tokens with which a step is fast; a longer prompt is computed nevertheless.
    """
    return most if enough >= most else min(most, max((enough, *left)))


def step_tokens(left: Iterable[tuple[int, bool]], most: int, for_long: int, *, after_long: bool) -> int:
    """Return how many tokens the next step may have: all those of short requests, and some of long ones', or none.

    Args:
        left: Of each prompt that waits or runs, the tokens to compute, and whether it is a long request's.
        most: Tokens of a step without a bound.
        for_long: Tokens for long requests; a longer prompt is computed nevertheless.
        after_long: Whether the last step had prompts of long requests. If so, short ones that wait have this step for themselves.
    """
    short, longest = 0, for_long
    for tokens, long in left:
        if long:
            longest = max(longest, tokens)
        else:
            short += tokens
    if short and after_long:
        return min(most, short)
    return min(most, short + longest)
