"""Bodies that nobody should send: made from a plugin's own schema, its borders, random JSON, and damaged bytes. Pure and seeded.

Nothing here knows a plugin. The schema of its requests says which fields there are and where their borders lie; one request
that is known to be answered is what most bodies differ from in a single place.
"""

from __future__ import annotations

import base64
import binascii
import copy
import gzip
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Json = Any

# texts that have broken tokenizers, decoders or offsets somewhere
STRINGS = (
    *("", " ", "\t\n\r\n", "a", "A" * 300, "word " * 200, "\u0000", "\u0007", "\ufeff", "\u200b\u200d", "\u202eabc"),
    *(
        "İstanbul ı",
        "ﬁ ﬀ Ⅷ",
        "e\u0301\u0301\u0301",
        "👩‍👩‍👧‍👦🇫🇮👋🏽",
        "𝔘𝔫𝔦𝔠",
        "\U0010ffff",
        "\ue000",
        "日本語" * 40,
        "ـــــ",
    ),
    *("[CLS] [SEP] [MASK]", "<<ENT>> <<SEP>>", "</s><pad>", "<|endoftext|>", "null", "NaN", "-1", "1e999", "true"),
    *(
        "../../etc/passwd",
        "'; DROP TABLE x; --",
        "<script>x</script>",
        "%s%n{0}${x}",
        "\\",
        '"',
        "\r\n\r\nHTTP/1.1 200 OK",
    ),
)
# in the place of the address of a file: of this machine, of a metadata service, of another host than it seems, and of none
ADDRESSES = (
    "https://127.0.0.1/a.pdf",
    "http://169.254.169.254/latest/meta-data",
    "https://files.invalid@[::1]/a.pdf",
    "https://files.invalid:99999/a.png",
    "file:///etc/passwd",
)
NUMBERS = (
    0,
    -1,
    1,
    2,
    255,
    256,
    257,
    1000,
    1001,
    2**31,
    2**63,
    -(2**63) - 1,
    10**40,
    0.0,
    -0.0,
    0.5,
    1.0,
    1.0000001,
    -1e-9,
)
# Python writes these as no JSON has them
ODD_NUMBERS = (float("nan"), float("inf"), float("-inf"), 1e308)
OTHERS: tuple[Json, ...] = (
    None,
    True,
    False,
    [],
    {},
    [[]],
    [None],
    [{}],
    {"": None},
    [[["a"]]],
    {"a": {"b": {"c": []}}},
)
CONTENT_TYPES = (
    "text/plain",
    "application/x-www-form-urlencoded",
    "",
    "application/json; charset=utf-16",
    "multipart/form-data",
)
DEEP = 3_000
# characters of base64; no text of a good request has as many without a space
_SHORTEST_FILE = 80
# fields around a request, in which any text but one is refused
ENVELOPE = frozenset({"model", "lora", "task", "priority", "request_id", "user"})


@dataclass(frozen=True, slots=True)
class Body:
    """What is posted.

    Attributes:
        kind: How it was made.
        content: Its bytes.
        headers: What its headers say.
        path: Where it is posted to.
    """

    kind: str
    content: bytes
    headers: Mapping[str, str]
    path: str = "/pooling"


@dataclass(frozen=True, slots=True)
class Shape:
    """What one route takes.

    Attributes:
        path: The route.
        schema: JSON schema of the whole body.
        good: Whole bodies of requests that are answered, without the model's name.
    """

    path: str
    schema: Mapping[str, Json]
    good: Sequence[Mapping[str, Json]]


class Maker:
    """Makes bodies for the routes of one plugin.

    Args:
        shapes: The routes; half of all bodies are for the first one.
        seed: The same one makes the same bodies.
        body_bytes: The largest body that is taken.
    """

    def __init__(self, shapes: Sequence[Shape], seed: int, body_bytes: int) -> None:
        self._shapes = shapes
        self._shape = shapes[0]
        self._chance = random.Random(seed)
        self._body_bytes = body_bytes
        self._kinds: dict[str, tuple[int, Callable[[], Body]]] = {
            "valid": (12, self._valid),
            "other text": (14, self._other_text),
            "border": (20, self._border),
            "combined": (16, self._combined),
            "fields": (8, self._fields),
            "random data": (8, self._random_data),
            "random JSON": (6, self._random_json),
            "damaged": (12, self._damaged),
            "headers": (2, self._headers),
            "deep": (1, self._deep),
            "large": (1, self._large),
        }
        if any(self._files(body) for shape in shapes for body in shape.good):
            self._kinds["damaged files"] = (30, self._damaged_files)
        if any(self._addresses(body) for shape in shapes for body in shape.good):
            self._kinds["other addresses"] = (10, self._other_addresses)

    @property
    def kinds(self) -> list[str]:
        """Every way of making one."""
        return list(self._kinds)

    def bodies(self, count: int) -> Iterator[Body]:
        """Make so many, each kind at least once when there are enough."""
        names = list(self._kinds)
        weights = [self._kinds[name][0] for name in names]
        for number in range(count):
            name = names[number] if number < len(names) else self._chance.choices(names, weights)[0]
            first = len(self._shapes) == 1 or self._chance.random() < 0.5
            self._shape = self._shapes[0] if first else self._chance.choice(self._shapes[1:])
            yield replace(self._kinds[name][1](), path=self._shape.path)

    def _valid(self) -> Body:
        return self._json("valid", {"model": "bench", **self._any_good()})

    def _other_text(self) -> Body:
        """A good request with other strings in it: answered, or refused by name."""
        body = self._any_good()
        for path in self._paths(body):
            if isinstance(_at(body, path), str) and self._chance.random() < 0.5:
                _put(body, path, self._string())
        return self._json("other text", body)

    def _border(self) -> Body:
        """A good request with one place changed."""
        body = {"model": "bench", **self._any_good()}
        path = self._chance.choice(self._paths(body))
        _put(body, path, self._odd(_at(body, path)))
        return self._json("border", body)

    def _combined(self) -> Body:
        """Every field of the schema by chance, with values of its type and around its borders."""
        properties = self._shape.schema["properties"]
        wanted = {name: part for name, part in properties.items() if name not in ENVELOPE}
        return self._json(
            "combined", self._of_schema({**self._shape.schema, "type": "object", "properties": wanted}, 0)
        )

    def _fields(self) -> Body:
        """A good request with fields missing, surplus, or twice."""
        body: dict[str, Json] = {"model": "bench", **self._any_good()}
        place = self._chance.choice([body, *(part for part in body.values() if isinstance(part, dict))])
        for name in list(place):
            if self._chance.random() < 0.3:
                del place[name]
        if self._chance.random() < 0.5:
            place[self._string()[:40]] = self._any_json(2)
        content = _dump(body)
        if self._chance.random() < 0.3:
            content = content.replace(b"{", b'{"data": 1, ', 1)
        return Body("fields", content, {})

    def _random_data(self) -> Body:
        name = self._chance.choice(list(self._any_good()))
        return self._json("random data", {"model": "bench", name: self._any_json(4)})

    def _random_json(self) -> Body:
        return self._json("random JSON", self._any_json(4))

    def _damaged(self) -> Body:
        whole = self._with_damage(_dump({"model": "bench", **self._any_good()}))
        if self._chance.random() < 0.1:
            whole = self._chance.choice(
                (whole.decode("latin-1").encode("utf-16"), gzip.compress(whole, mtime=0), whole * 2)
            )
        return Body("damaged", whole, {})

    def _damaged_files(self) -> Body:
        """A good request whose images or PDFs are damaged, or in the place of each other."""
        body = self._chance.choice([body for body in self._shape.good if self._files(body)] or self._shape.good)
        body = {"model": "bench", **copy.deepcopy(body)}
        found = self._files(body)
        for path, content in found.items():
            if self._chance.random() < 0.1:
                content = self._chance.choice(list(found.values()))
            _put(body, path, base64.b64encode(self._with_damage(content)).decode())
        return self._json("damaged files", body)

    def _other_addresses(self) -> Body:
        """A good request with another address in the place of one."""
        body = self._chance.choice([body for body in self._shape.good if self._addresses(body)] or self._shape.good)
        body = {"model": "bench", **copy.deepcopy(body)}
        if found := self._addresses(body):
            _put(body, self._chance.choice(found), self._chance.choice(ADDRESSES))
        return self._json("other addresses", body)

    def _addresses(self, body: Mapping[str, Json]) -> list[tuple[str | int, ...]]:
        """Return where the addresses of files are in a body."""
        return [path for path in self._paths(body) if str(_at(body, path)).startswith("https://")]

    def _files(self, body: Mapping[str, Json]) -> dict[tuple[str | int, ...], bytes]:
        """Return the files in a body, by where they are."""
        paths = [path for path in self._paths(body) if _is_file(_at(body, path))]
        return {path: base64.b64decode(_at(body, path)) for path in paths}

    def _with_damage(self, sound: bytes) -> bytes:
        content = bytearray(sound)
        for _ in range(self._chance.choice((1, 1, 2, 8))):
            how, place = self._chance.randrange(5), self._chance.randrange(len(content) or 1)
            if how == 0 and content:
                content[place] = self._chance.randrange(256)
            elif how == 1:
                del content[place:]
            elif how == 2:
                content[place:place] = self._chance.randbytes(self._chance.randrange(1, 9))
            elif how == 3:
                del content[place : place + self._chance.randrange(1, 9)]
            else:
                content[place:place] = self._chance.choice(
                    (b"\xff", b"\xef\xbb\xbf", b"\\ud800", b"\x00", b",,", b"//")
                )
        return bytes(content)

    def _headers(self) -> Body:
        good = _dump(self._any_good())
        if self._chance.random() < 0.5:
            return Body("headers", good, {"content-type": self._chance.choice(CONTENT_TYPES)})
        return Body("headers", gzip.compress(good, mtime=0), {"content-encoding": "gzip"})

    def _deep(self) -> Body:
        opening, closing = self._chance.choice(((b"[", b"]"), (b'{"a":', b"}")))
        return Body("deep", b'{"data": ' + opening * DEEP + b"1" + closing * DEEP + b"}", {})

    def _large(self) -> Body:
        size = self._body_bytes + self._chance.choice((-4096, 1, 4096, self._body_bytes))
        return Body("large", b'{"data": {"text": "' + b"x " * (size // 2 - 12) + b'"}}', {})

    def _json(self, kind: str, value: Json) -> Body:
        return Body(kind, _dump(value), {})

    def _any_good(self) -> dict[str, Json]:
        return dict(copy.deepcopy(self._chance.choice(self._shape.good)))

    def _paths(self, value: Json, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
        """Return where everything below ``value`` is."""
        steps: list[str | int] = []
        if isinstance(value, dict):
            steps = list(value)
        elif isinstance(value, list):
            steps = list(range(len(value)))
        found = []
        for step in steps:
            found += [(*path, step), *self._paths(value[step], (*path, step))]
        return found

    def _string(self) -> str:
        if self._chance.random() < 0.6:
            return self._chance.choice(STRINGS)
        # anywhere in Unicode but the surrogates, which no UTF-8 has
        ranges = ((32, 127), (0, 0x2FF), (0x370, 0x7FF), (0x4E00, 0x9FFF), (0x1F300, 0x1FAFF), (0xE000, 0x10FFFF))
        first, last = self._chance.choice(ranges)
        return "".join(chr(self._chance.randint(first, last)) for _ in range(self._chance.choice((1, 5, 40, 400))))

    def _odd(self, value: Json) -> Json:
        """Return something instead of ``value``: like it, or nothing like it."""
        how = self._chance.random()
        if how < 0.25:
            return self._chance.choice(OTHERS)
        if how < 0.45:
            return self._chance.choice((*NUMBERS, *ODD_NUMBERS))
        if how < 0.65 or isinstance(value, str):
            return self._string()
        if isinstance(value, list):
            return value * self._chance.choice((0, 2, 40, 257)) if how < 0.9 else [value]
        return [value] if how < 0.8 else {"a": value}

    def _any_json(self, depth: int) -> Json:
        how = self._chance.randrange(6 if depth else 4)
        if how == 0:
            return self._chance.choice(OTHERS)
        if how == 1:
            return self._chance.choice((*NUMBERS, *ODD_NUMBERS))
        if how in (2, 3):
            return self._string()
        size = self._chance.randrange(5)
        if how == 4:
            return [self._any_json(depth - 1) for _ in range(size)]
        names = [*self._shape.schema.get("properties", {}), *_names(self._shape.schema)]
        return {
            (self._chance.choice(names) if self._chance.random() < 0.7 else self._string()[:30]): self._any_json(
                depth - 1
            )
            for _ in range(size)
        }

    def _of_schema(self, schema: Mapping[str, Json], depth: int) -> Json:
        """Return a value that the schema describes, or one just beyond."""
        if self._chance.random() < 0.03:
            return self._any_json(2)
        if "$ref" in schema:
            return self._of_schema(self._shape.schema["$defs"][schema["$ref"].rpartition("/")[2]], depth)
        if "anyOf" in schema:
            return self._of_schema(self._chance.choice(schema["anyOf"]), depth)
        if "const" in schema or "enum" in schema:
            choices = schema.get("enum", [schema.get("const")])
            return self._chance.choice([*choices, *choices, "other", None])
        kind = schema.get("type")
        if kind == "object":
            required = set(schema.get("required", ()))
            others = schema.get("additionalProperties")
            made: dict[str, Json] = {}
            if isinstance(others, dict):
                count = self._chance.choice((0, 1, 1, 2, 5))
                made = {self._string()[:30]: self._of_schema(others, depth + 1) for _ in range(count)}
            return made | {
                name: self._of_schema(part, depth + 1)
                for name, part in schema.get("properties", {}).items()
                if self._chance.random() < (0.95 if name in required else 0.5)
            }
        if kind == "array":
            if tuple_of := schema.get("prefixItems"):
                return [self._of_schema(part, depth + 1) for part in tuple_of[: self._chance.choice((1, 2, 9, 9, 9))]]
            size = self._chance.choice((0, 1, 1, 2, 3, 8))
            return [self._of_schema(schema.get("items", {}), depth + 1) for _ in range(size)]
        if kind in ("integer", "number"):
            borders = [
                schema[name]
                for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
                if name in schema
            ]
            near = [border + step for border in borders for step in (-1, -1e-9, 0, 1e-9, 1)]
            chosen = self._chance.choice([*near, *NUMBERS, *([self._chance.random()] * 4)])
            return int(chosen) if kind == "integer" and self._chance.random() < 0.9 else chosen
        if kind == "boolean":
            return self._chance.choice((True, False, True, False, 0, "true"))
        if kind == "null":
            return None
        return self._string()


def _names(schema: Mapping[str, Json]) -> list[str]:
    return [name for part in schema.get("$defs", {}).values() for name in part.get("properties", {})]


def _is_file(value: Json) -> bool:
    if not isinstance(value, str) or len(value) < _SHORTEST_FILE:
        return False
    try:
        return bool(base64.b64decode(value, validate=True))
    except (binascii.Error, ValueError):
        return False


def _dump(value: Json) -> bytes:
    """Write JSON as clients do, some of them with what JSON has not."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _at(value: Json, path: tuple[str | int, ...]) -> Json:
    for step in path:
        value = value[step]
    return value


def _put(value: Json, path: tuple[str | int, ...], new: Json) -> None:
    _at(value, path[:-1])[path[-1]] = new
