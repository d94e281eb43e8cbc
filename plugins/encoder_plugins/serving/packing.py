"""Which texts of a request share an engine request. Pure.

An engine request costs its scheduler and its runner the same whether it holds one text or thirty. The marks of its tokens
(``backbones.token_marks``) keep its texts apart, so that nothing of a text depends on the others.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

# tokens of a shared prompt: more would leave a single client's request to one engine, where others could share it
MOST_TOKENS = 2048

ItemT = TypeVar("ItemT")


def pack(tokens: Sequence[int], most_tokens: int, kinds: Sequence[Hashable] = ()) -> list[int]:
    """Return the number of texts of each prompt: as many as fit, in order.

    Args:
        tokens: Those of each text; a text of more than ``most_tokens`` has a prompt of its own.
        most_tokens: Tokens of a shared prompt.
        kinds: Of each text what the texts of a prompt have to have in common; nothing where there are none.

    Returns:
        Numbers of at least 1; their sum is the number of texts.
    """
    packs: list[int] = []
    total, last = 0, object()
    for own, kind in zip(tokens, kinds or [None] * len(tokens), strict=True):
        total += own
        if packs and total <= most_tokens and kind == last:
            packs[-1] += 1
        else:
            packs.append(1)
            total, last = own, kind
    return packs


def grouped(items: Iterable[ItemT], counts: Iterable[int]) -> list[list[ItemT]]:
    """Return the items of each prompt, in order: the next ``counts`` of them."""
    left = iter(items)
    return [list(islice(left, count)) for count in counts]
