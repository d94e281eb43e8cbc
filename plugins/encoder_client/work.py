"""A call as requests: lists of texts are split at the server's limits, and the answers are put together again. Pure.

A call is planned as ``Work``; ``client`` and ``async_client`` only differ in how they send what is in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from encoder_client.errors import ArgumentError, EncoderClientError, InvalidAnswerError, InvalidRequestError

T = TypeVar("T")

POOLING = "/pooling"


@dataclass(frozen=True, slots=True)
class Answer:
    """A good answer.

    Attributes:
        content: The body.
        headers: The headers, by names in lower case.
    """

    content: bytearray
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One document of a call, with what belongs to it.

    Attributes:
        values: JSON by the name of the field that lists it, e.g. ``texts`` and ``labels_per_text``.
        characters: Code points that count towards the server's limit.
        place: Its position in the caller's list.
        own: JSON by the name of the field, of an item that has fields of the request itself, e.g. ``pdf`` and ``pages``.
        part: Of several items for one position, which one it is.
        alone: Whether it is a request of its own.
    """

    values: Mapping[str, bytes]
    characters: int
    place: int
    own: Mapping[str, bytes] = field(default_factory=dict)
    part: int = 0
    alone: bool = False

    @property
    def size(self) -> int:
        """Bytes in a body, with the separators."""
        return sum(len(value) + 2 for value in (*self.values.values(), *self.own.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One request: some items of a call, one behind the other.

    Attributes:
        items: At least one.
        envelope: JSON of the fields beside ``data``, and of the fields of ``data`` that all items share; see ``envelope_of``.
        divisible: Fields whose refusal may mean that the request has too many items.
    """

    items: Sequence[Item]
    envelope: tuple[bytes, bytes]
    divisible: frozenset[str]

    @property
    def place(self) -> int:
        """The position of the first item in the caller's list."""
        return self.items[0].place

    @property
    def order(self) -> tuple[int, int]:
        """Where its answer stands among those of the call."""
        return self.items[0].place, self.items[0].part

    def body(self) -> bytes:
        """Return the body of the request."""
        columns = b"".join(
            b', "%s": [%s]' % (name.encode(), b", ".join(item.values[name] for item in self.items))
            for name in self.items[0].values
        ) + b"".join(b', "%s": %s' % (name.encode(), value) for name, value in self.items[0].own.items())
        outer, common = self.envelope
        data = b"{" + (common + columns if common else columns[2:]) + b"}"
        return b"{" + outer + b'"data": ' + data + b"}"

    def halves(self) -> tuple[Batch, Batch]:
        """Return the two halves; there must be more than one item."""
        half = len(self.items) // 2
        return (
            Batch(items=self.items[:half], envelope=self.envelope, divisible=self.divisible),
            Batch(items=self.items[half:], envelope=self.envelope, divisible=self.divisible),
        )

    def is_too_large(self, error: EncoderClientError) -> bool:
        """Return whether the server may answer the halves of what it refused."""
        if len(self.items) == 1 or not isinstance(error, InvalidRequestError):
            return False
        return error.status == 413 or error.param in self.divisible


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(Generic[T]):
    """A call.

    Attributes:
        batches: Its requests, made as they are sent.
        total: The number of its items.
        decode: Turns an answer to a batch into its part of the result.
        combine: Turns the parts, in the order of the items, into the result.
        progress: Whether a progress bar is shown.
        reads_files: Whether making a request reads a file or encodes an image, which an event loop must not wait for.
    """

    batches: Iterator[Batch]
    total: int
    decode: Callable[[Answer, Batch], Any]
    combine: Callable[[list[Any]], T]
    progress: bool = False
    reads_files: bool = False

    def part(self, answer: Answer, batch: Batch) -> Any:
        """Return what an answer contributes to the result.

        Raises:
            InvalidAnswerError: It is not the answer to this batch.
        """
        try:
            return self.decode(answer, batch)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            raise InvalidAnswerError(f"the answer has another shape: {type(error).__name__}: {error}") from error


def first_of(work: Work[list[T]]) -> Work[T]:
    """Return the call for the only item of ``work``, whose result is that item's."""
    return Work(batches=work.batches, total=1, decode=work.decode, combine=lambda parts: work.combine(parts)[0])


def json_of(value: Any, *, param: str) -> bytes:
    """Return ``value`` as JSON in UTF-8.

    Raises:
        ArgumentError: It holds something that JSON has not: NaN, half of a surrogate pair, or an object of another type.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain).encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(
            f"half of a surrogate pair at position {_position(value, error)} is not a character", param=param
        ) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"it cannot be sent as JSON: {error}", param=param) from None


def _plain(value: Any) -> Any:
    """Return what JSON has for a number of numpy, or an array."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} has no place in JSON")


def _position(value: Any, error: UnicodeEncodeError) -> int:
    if not isinstance(value, str):
        return error.start
    return next(place for place, character in enumerate(value) if "\ud800" <= character <= "\udfff")


def envelope_of(outer: Mapping[str, Any], common: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """Return the JSON of fields beside ``data``, with a comma behind, and of fields in it; those that are None are left out."""
    written = []
    for fields in (outer, common):
        parts = [
            b'"%s": %s' % (name.encode(), json_of(value, param=name))
            for name, value in fields.items()
            if value is not None
        ]
        written.append(b", ".join(parts))
    return (written[0] + b", " if written[0] else b""), written[1]


def split(
    items: Iterable[Item],
    limits: Mapping[str, int],
    *,
    most: int,
    envelope: tuple[bytes, bytes],
    divisible: Iterable[str] = (),
) -> Iterator[Batch]:
    """Yield the requests of a call: as many items as the server's limits permit, in order.

    An item that is beyond a limit by itself is a request of its own, which the server refuses by name.

    Args:
        items: The items.
        limits: The server's limits; ``characters`` and ``body_bytes`` count.
        most: Items of one request, 1 or more.
        envelope: See ``Batch``.
        divisible: See ``Batch``.
    """
    most_characters = limits.get("characters", 1 << 62)
    # the names of the lists, and some brackets
    most_bytes = limits.get("body_bytes", 1 << 62) - sum(map(len, envelope)) - 512
    found: list[Item] = []
    characters = size = 0
    fields = frozenset(divisible)
    for item in items:
        full = len(found) == most or characters + item.characters > most_characters or size + item.size > most_bytes
        if found and (full or item.alone or found[-1].alone):
            yield Batch(items=found, envelope=envelope, divisible=fields)
            found, characters, size = [], 0, 0
        found.append(item)
        characters += item.characters
        size += item.size
    if found:
        yield Batch(items=found, envelope=envelope, divisible=fields)


_POSITION = re.compile(r"\[(\d+)\]")


def param_in_call(param: str | None, batch: Batch) -> str | None:
    """Return the field that a refusal of a batch names, with the position in the call instead of that in the request."""
    if param is None:
        return None
    if (own := param.removeprefix("data.")) in batch.items[0].own:
        return f"inputs[{batch.place}].{own}"
    name, bracket, _ = param.partition("[")
    if not bracket or name.removeprefix("data.") not in batch.items[0].values:
        return param

    def moved(found: re.Match[str]) -> str:
        position = int(found[1])
        return f"[{batch.items[position].place}]" if position < len(batch.items) else found[0]

    return _POSITION.sub(moved, param, count=1)


def listed(inputs: Any, *, param: str) -> list[Any]:
    """Return what an argument for several holds, in its order.

    Raises:
        ArgumentError: It is one text or document, or has no order; an array, a column of a table, or an iterator is right.
    """
    found = inputs.tolist() if hasattr(inputs, "tolist") else inputs
    # what these yield are characters, numbers, or keys: another call than the one that was meant, and no error
    if isinstance(found, str | bytes | bytearray | Mapping | set | frozenset) or not isinstance(found, Iterable):
        raise ArgumentError(f"it is {type(inputs).__name__}; send a list", param=param)
    return list(found)


def texts_of(inputs: Any, *, param: str) -> list[str]:
    """Return a list of texts.

    Raises:
        ArgumentError: It is not one; an array or a column of a table is.
    """
    texts = listed(inputs, param=param)
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise ArgumentError(f"it is {type(text).__name__}, not a text", param=f"{param}[{position}]")
    return texts


def positive(value: int, *, param: str) -> int:
    """Return a number of items; raises ArgumentError where it is no whole number, or below 1."""
    if not hasattr(value, "__index__"):
        raise ArgumentError(f"it must be a whole number, got {value!r}", param=param)
    if value < 1:
        raise ArgumentError(f"it must be 1 or more, got {value}", param=param)
    return value
