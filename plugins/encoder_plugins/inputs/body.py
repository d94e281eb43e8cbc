"""From the bytes of a body to a request, in one strict pass, and one sentence for a client that sent something else. Pure.

A request type is a ``msgspec.Struct`` below ``Data``: exact types, no unknown field. Field names and limits are its schema, from which
the OpenAPI document is made, too.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Meta, inspect

from encoder_plugins.errors import InvalidRequest, UnknownAdapter, UnknownModel

T = TypeVar("T")

# whole floats up to here are the integers that a client means
_EXACT = 2**53
_FLOAT_FOR_INTEGER = re.compile(r"Expected `int\b.*, got `float`")
# of a client's own field name in a message
_LONGEST_NAME = 100

_BUILDING = threading.Lock()


class Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base of request types."""


EncodingField: TypeAlias = Annotated[
    Literal["float", "base64", "bytes"],
    Meta(
        description="float: lists of numbers. base64: each vector's little-endian numbers in base64. bytes: the body is"
        " the numbers of all vectors, row by row, and nothing else; X-Encoder-Shape and X-Encoder-Dtype describe them."
    ),
]


class Envelope(Data, Generic[T], frozen=True):
    """The body of ``POST /pooling``."""

    data: T
    model: Annotated[
        str | None,
        Meta(
            description="What the server calls the model, or one of its LoRA adapters, as `lora`; it is checked if it is there."
        ),
    ] = None
    lora: Annotated[
        str | None, Meta(description="The name of a LoRA adapter that the server was started with; null for none.")
    ] = None
    task: Annotated[
        Literal["plugin"] | None, Meta(description="Accepted for clients of vLLM's own API; without effect.")
    ] = None
    priority: Annotated[Literal[0], Meta(description="Accepted for clients of vLLM's own API; without effect.")] = 0
    request_id: Annotated[str | None, Meta(description="Accepted for clients of vLLM's own API; without effect.")] = (
        None
    )
    user: Annotated[str | None, Meta(description="Accepted for clients of OpenAI's API; without effect.")] = None


def decode(body: bytes, kind: type[T]) -> T:
    """Parse and check ``body``; a whole number is an integer, however it is written: ``144.0``, ``1e2``.

    Raises:
        InvalidRequest: It is not JSON (NaN and lone surrogates are not), or not a request of type ``kind``.
    """
    try:
        try:
            found: T = _decoder(cast(Hashable, kind)).decode(body)
            return found
        except msgspec.ValidationError as error:
            if _FLOAT_FOR_INTEGER.match(str(error)) is None:
                raise
        # once more, with an integer for each whole number, which fields of floats take, too
        return msgspec.convert(_WHOLE.decode(body), kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), body, kind) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _not_json(str(error), body) from None
    except RecursionError:
        raise InvalidRequest("the JSON is nested too deeply", param="body") from None


def encode(data: object, *, lora: str | None = None) -> bytes:
    """Return the body of ``POST /pooling`` with ``data`` in it; for requests that do not come as bytes.

    Bytes are written in base64 where a field takes that.

    Raises:
        InvalidRequest: ``data`` holds something that JSON has not, such as a lone surrogate, or bytes in place of a text.
    """
    try:
        in_bytes = _bytes_as_text(data, ("data",))
        body = msgspec.json.encode({"data": data} if lora is None else {"data": data, "lora": lora}, enc_hook=_plain)
        # msgspec writes null for a number that is not finite, and null means something to some fields
        infinite = _position(data, _is_not_finite, ("data",)) if b"null" in body else None
    except UnicodeEncodeError:
        path = _position(data, _has_surrogate, ("data",)) or ("data",)
        raise InvalidRequest(_SURROGATE, param=_path(path)) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the request cannot be written as JSON: {error}", param="data") from None
    if in_bytes is not None:
        raise InvalidRequest("the value is bytes, and has to be a text", param=_path(in_bytes))
    if infinite is not None:
        raise InvalidRequest(_NOT_FINITE, param=_path(infinite))
    return body


def adapter_of(model: str | None, lora: str | None, names: Sequence[str], adapters: frozenset[str]) -> str | None:
    """Return the LoRA adapter of a request; None for the model itself.

    Args:
        model: What the request calls the model: a name of it or, as in vLLM's own APIs, of an adapter; None leaves it open.
        lora: The adapter that the request names; None for none.
        names: The names of the model, of which there is at least one.
        adapters: The names of the adapters.

    Raises:
        UnknownModel: ``model`` is none of them.
        UnknownAdapter: ``lora`` is none of ``adapters``.
        InvalidRequest: Both name an adapter, and not the same one.
    """
    named = model if model not in names else None
    if named is not None and named not in adapters:
        known = f"; adapters: {', '.join(sorted(adapters))}" if adapters else ""
        raise UnknownModel(f"no model {named[:200]!r} is served here; this is {names[0]!r}{known}", param="model")
    if lora is not None and lora not in adapters:
        known = ", ".join(sorted(adapters)) or "none"
        raise UnknownAdapter(f"no adapter {lora[:200]!r} is served here; there is: {known}", param="lora")
    if named is not None and lora not in (None, named):
        raise InvalidRequest(f"`model` names another adapter, {named!r}", param="lora")
    return lora or named


@cache
def _decoder(kind: Hashable) -> Any:
    # msgspec shows a type to other threads while it still collects the types of its fields, and a decoder made from that crashes
    # the process (0.22.0): the first requests of a server are parsed in several threads at once
    with _BUILDING:
        return msgspec.json.Decoder(kind)


def _whole(literal: str) -> int | float:
    """Return a number with a fraction or an exponent; an integer for a whole one, as JSON and JSON Schema have it."""
    value = float(literal)
    return int(value) if value.is_integer() and abs(value) <= _EXACT else value


_WHOLE = msgspec.json.Decoder(float_hook=_whole)


def _plain(value: object) -> object:
    """Return what JSON has for a numpy scalar or array."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} has no place in JSON")


# a client's own value before the path may look like one, and goes on differently
_WHERE = re.compile(r"(.*?)(?: - at `(\$(?:\.\w+|\[\d+\]|\[\.\.\.\])*)`)?", re.DOTALL)
_FIELD = re.compile(r"Object (?:contains unknown|missing required) field `(.*)`", re.DOTALL)


# what msgspec writes for a key of a mapping
_ANY_KEY = "[...]"

# bodies beyond this size are not read again to find a field
_NAMED_BYTES = 1 << 18

# what takes base64, which msgspec writes for bytes
_BASE64 = frozenset({"image", "images", "pdf", "label_vectors"})

_SURROGATE = "the text holds a lone surrogate, which is not a character"
_NOT_FINITE = "the number is not finite; JSON has neither NaN nor infinity"


def _not_json(finding: str, body: bytes) -> InvalidRequest:
    """Return msgspec's finding about a body that it cannot read, or the field whose value is all that JSON has not."""
    if len(body) <= _NAMED_BYTES:
        try:
            # Python's own reader takes both
            document = json.loads(body)
            for is_wrong, what in ((_has_surrogate, _SURROGATE), (_is_not_finite, _NOT_FINITE)):
                if (path := _position(document, is_wrong, ())) is not None:
                    # keys are the client's, too
                    where = _path(path).encode(errors="replace").decode()
                    return InvalidRequest(what, param=where or "body")
        except (ValueError, RecursionError):
            pass  # it cannot read it, either
    return InvalidRequest(f"not valid JSON: {finding}", param="body")


def _invalid(message: str, body: bytes, kind: Any) -> InvalidRequest:
    """Return msgspec's finding as a sentence without the client's values, and the path of the field."""
    what, place = _parsed(message)
    where = _with_keys(place, body, kind)
    if field := _FIELD.fullmatch(what):
        name = field.group(1)[:_LONGEST_NAME]
        where = f"{where}.{name}" if where else name
        what = "the field is required" if what.startswith("Object missing") else "there is no such field"
    elif what.startswith("Invalid enum value"):
        what = f"it must be {' or '.join(map(repr, _choices(kind, place)))}"
    return InvalidRequest(what, param=where or "body")


def _parsed(message: str) -> tuple[str, str]:
    """Return what msgspec found, and its path."""
    matched = _WHERE.fullmatch(message)
    assert matched is not None
    return matched.group(1), (matched.group(2) or "$")[1:].lstrip(".")


def _with_keys(place: str, body: bytes, kind: Any) -> str:
    """Return msgspec's path with the keys of mappings in it.

    The values of a mapping are checked in order: a document that has only some of its keys is refused with the same message if
    the key is among them.
    """
    if _ANY_KEY not in place or len(body) > _NAMED_BYTES:
        return place
    try:
        document = _WHOLE.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return place  # something behind it is not JSON, or nested too deeply
    # in other words than those of the bytes: an integer beyond 64 bits is a float there
    message = _problem(document, kind)
    if message is None or _parsed(message)[1] != place:
        return place
    try:
        return _keys_in(place, document, kind, message)
    except (LookupError, TypeError):
        return place  # it is the end of a field's name


def _keys_in(place: str, document: Any, kind: Any, message: str) -> str:
    """Return msgspec's path with the keys of mappings in it, of a document that is refused with ``message``."""
    holder: Any = [document]
    position: Any = 0
    path = ""
    for step in _steps(place):
        found = holder[position]
        if step != _ANY_KEY:
            holder, position = found, int(step[1:-1]) if step.startswith("[") else step
            path += step if step.startswith("[") else f".{step}"
            continue
        keys = list(found)
        while len(keys) > 1:
            half = keys[: len(keys) // 2]
            holder[position] = {key: found[key] for key in half}
            keys = half if _problem(document, kind) == message else keys[len(half) :]
        holder[position] = {keys[0]: found[keys[0]]}
        holder, position = holder[position], keys[0]
        path += f".{keys[0][:_LONGEST_NAME]}"
    return path.lstrip(".")


def _problem(document: object, kind: Any) -> str | None:
    try:
        msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        return str(error)
    return None


def _steps(path: str) -> list[str]:
    """Return the steps of msgspec's path: names, ``[3]`` and ``[...]``."""
    return re.findall(r"\[[^\]]*\]|[^.\[\]]+", path)


def _choices(kind: Any, path: str) -> tuple[object, ...]:
    """Return the values that the field at ``path`` can have."""
    found = inspect.type_info(kind)
    for step in _steps(path):
        found = _child(found, step)
    (choices,) = (part for part in _parts(found) if isinstance(part, inspect.LiteralType))
    return choices.values


def _child(found: inspect.Type, step: str) -> inspect.Type:
    for part in _parts(found):
        if isinstance(part, inspect.DictType) and step == _ANY_KEY:
            return part.value_type
        if isinstance(part, inspect.ListType) and step.startswith("[") and step != _ANY_KEY:
            return part.item_type
        if isinstance(part, inspect.StructType) and not step.startswith("["):
            return next(field.type for field in part.fields if field.encode_name == step)
    raise AssertionError(f"no field {step}")


def _parts(found: inspect.Type) -> Sequence[inspect.Type]:
    if isinstance(found, inspect.Metadata):
        return _parts(found.type)
    if isinstance(found, inspect.UnionType):
        return [part for member in found.types for part in _parts(member)]
    return [found]


def _has_surrogate(value: object) -> bool:
    return isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value)


def _is_not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _position(
    value: Any, is_wrong: Callable[[object], bool], path: tuple[str | int, ...]
) -> tuple[str | int, ...] | None:
    """Return the path of the first part of ``value`` that is wrong; None where there is none."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if is_wrong(value):
        return path
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for step, part in steps:
        found = _position(part, is_wrong, (*path, step))
        if found is not None:
            return found
    return None


def _bytes_as_text(value: Any, path: tuple[str | int, ...]) -> tuple[str | int, ...] | None:
    """Return the path of the first bytes in a field that does not take base64; None where there are none."""
    if isinstance(value, bytes | bytearray | memoryview):
        return path
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for step, part in steps:
        # texts are most of a request
        if type(part) is str or step in _BASE64:
            continue
        if (found := _bytes_as_text(part, (*path, step))) is not None:
            return found
    return None


def _path(location: Sequence[str | int]) -> str:
    """Return a location as clients write it: ``("data", "texts", 3)`` is ``data.texts[3]``."""
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step[:_LONGEST_NAME]}"
    return text.lstrip(".")
