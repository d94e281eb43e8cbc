"""Label sets: what a user writes, and the one form in which an artifact has them.

A user's file is a JSON list, or JSON lines. Each entry is a text, or an object with `label` and `id`; a label without an id is its own.
An artifact has ``label_sets/<name>.jsonl``: one line for each label, in the user's order, of the id and the label as a JSON list.

Standard library only: the command line, prep and servers import it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from encoder_plugins.errors import SourceFileNotFound, Unsupported

FOLDER = "label_sets"
SUFFIX = ".jsonl"

MOST_SETS = 16
MOST_LABELS = 1_000_000
MOST_CHARACTERS = 256
"""Characters of one label, and of one id."""
MOST_BYTES = 256 << 20
"""Bytes of a user's file: a million entries of 256 bytes."""

NAME = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
"""What a set may be called: as a Kubernetes object, in at most 63 characters."""

_FIELDS = frozenset({"id", "label"})
# of a user's own text in a message
_SHOWN = 60


class Label(NamedTuple):
    """One label of a set.

    Attributes:
        id: What answers have beside the label, and requests name it by.
        text: What the model reads.
    """

    id: str
    text: str


def check_name(name: str) -> None:
    """Refuse what no set can be called; raises Unsupported."""
    if not re.fullmatch(NAME, name):
        raise Unsupported(
            f"label set {name[:_SHOWN]!r}: a name is 1 to 63 lower-case letters, digits and -, and begins and ends with a"
            " letter or digit"
        )


def check_file(path: Path, name: str) -> None:
    """Refuse what need not be read to be refused. A pipe or a device may have no end, and its content is gone when it was read.

    Args:
        path: A user's file.
        name: What the set is called, for messages.

    Raises:
        SourceFileNotFound: There is no such file.
        Unsupported: It is not a regular file, or too large.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise SourceFileNotFound(f"label set {name}: cannot read {path}: {error.strerror}") from error
    if stat.S_ISDIR(found.st_mode):
        raise SourceFileNotFound(f"label set {name}: cannot read {path}: {os.strerror(errno.EISDIR)}")
    if not stat.S_ISREG(found.st_mode):
        raise Unsupported(f"label set {name}: {path} is not a regular file: write its content to one")
    if found.st_size > MOST_BYTES:
        raise Unsupported(f"label set {name}: {found.st_size} bytes; the limit is {MOST_BYTES}")


def parse(path: Path, name: str) -> Iterator[Label]:
    """Yield the labels of a user's file, in order.

    Args:
        path: The file.
        name: What the set is called, for messages.

    Raises:
        SourceFileNotFound: There is no such file.
        Unsupported: It is not a label set, or what ``check_file`` refuses. The message names the line, or the entry of a JSON list.
    """
    check_file(path, name)
    ids: dict[str, int] = {}
    texts: dict[str, int] = {}
    unit = "line"
    for number, (unit, entry) in enumerate(_entries(path, name), 1):
        where = f"label set {name}: {unit} {number}"
        if number > MOST_LABELS:
            raise Unsupported(f"{where}: the limit is {MOST_LABELS} labels")
        label = _label(entry, where)
        for field, value, seen in (("label", label.text, texts), ("id", label.id, ids)):
            if (first := seen.setdefault(value, number)) != number:
                raise Unsupported(f"{where}: the {field} {value[:_SHOWN]!r} is that of {unit} {first}, too")
        yield label
    if not texts:
        raise Unsupported(f"label set {name} has no labels")


def write(labels: Iterable[Label], target: Path) -> int:
    """Write the labels of a set as an artifact has them; return their number. Equal labels give equal bytes."""
    count = 0
    with target.open("w", encoding="utf-8", newline="\n") as lines:
        for label in labels:
            lines.write(json.dumps(label, ensure_ascii=False, separators=(",", ":")) + "\n")
            count += 1
    return count


def read(path: Path) -> Iterator[Label]:
    """Yield what ``write`` wrote; an artifact's digest covers it, so that nothing is checked again."""
    with path.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield Label(*json.loads(line))


def files(folder: Path | None) -> dict[str, Path]:
    """Return the files of the sets in an artifact's folder of them, by name; none where there is no such folder."""
    found = sorted(folder.glob(f"*{SUFFIX}")) if folder is not None else []
    return {path.name.removesuffix(SUFFIX): path for path in found}


def _entries(path: Path, name: str) -> Iterator[tuple[str, Any]]:
    """Yield each entry, and what its number counts."""
    with path.open("rb") as lines:
        first = lines.read(1)
        while first.isspace():
            first = lines.read(1)
        lines.seek(0)
        if first == b"[":
            found = _json(lines.read(), f"label set {name}")
            yield from (("entry", entry) for entry in found)
            return
        for number, line in enumerate(lines, 1):
            where = f"label set {name}: line {number}"
            if not line.strip():
                raise Unsupported(f"{where} is empty")
            yield "line", _json(line, where)


def _json(content: bytes, where: str) -> Any:
    try:
        return json.loads(
            content.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_object_of_different_keys
        )
    except (ValueError, RecursionError) as error:
        raise Unsupported(f"{where} is not valid JSON: {error}"[:200]) from None


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not valid JSON")


def _object_of_different_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; of a key that is there twice, the parser would take the last value without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice[:_SHOWN]!r} is there twice")
    return found


def _label(entry: Any, where: str) -> Label:
    if isinstance(entry, str):
        return Label(*[_text(entry, "label", where)] * 2)
    if not isinstance(entry, dict) or "label" not in entry:
        raise Unsupported(f"{where} is neither a text nor an object with a label: {json.dumps(entry)[:_SHOWN]}")
    if unknown := sorted(entry.keys() - _FIELDS):
        raise Unsupported(f"{where} has {unknown[0][:_SHOWN]!r}; there is: label, id")
    text = _text(entry["label"], "label", where)
    return Label(_text(entry.get("id", text), "id", where), text)


def _text(value: Any, field: str, where: str) -> str:
    if not isinstance(value, str):
        raise Unsupported(f"{where}: the {field} is not a text: {json.dumps(value)[:_SHOWN]}")
    if not value or value.isspace():
        raise Unsupported(f"{where}: the {field} is blank")
    if len(value) > MOST_CHARACTERS:
        raise Unsupported(f"{where}: the {field} has {len(value)} characters; the limit is {MOST_CHARACTERS}")
    if not value.isprintable() and any("\ud800" <= character <= "\udfff" for character in value):
        raise Unsupported(f"{where}: the {field} is not valid Unicode")
    return value
