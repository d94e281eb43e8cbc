"""Cache the answers of original libraries outside the checkout: most changes of ours do not change what a library computes.

An answer is reused while everything it was computed from is unchanged: the library's lock file, the processor, the arguments with the
content of every file and folder that they name, and each module of ours that the library's process had imported.
`ENCODER_NO_ANSWER_CACHE=1` computes everything again.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from encoder_checkpoints.original import original, roots
from encoder_plugins.prep import reference_environment

VARIABLE = "ENCODER_NO_ANSWER_CACHE"
_IMPORTED = "encoder_checkpoints.original_worker:imported"
# an answer that was not used for this long is removed
_DAYS = 14


def library_answer(library: str, function: str, *arguments: Any, **options: Any) -> Any:
    """Call a function in the environment of a library, or return what it returned to the same arguments before.

    Args:
        library: In whose environment it runs.
        function: ``"module:function"``. It writes nothing, and the same arguments have the same result. A lookup takes
            milliseconds: call through ``original`` what is called for each of many random examples.
        arguments: Numbers, texts, arrays, paths, and lists and mappings of them.
        options: Likewise.

    Raises:
        OriginalError: The function raised; that is not cached.
    """
    given = (function, arguments, options)
    return cached(library, given, lambda: original(library).call(function, *arguments, **options))


def cached(library: str, given: Any, compute: Callable[[], Any]) -> Any:
    """Return what ``compute`` returned for the same ``given`` before, or call it.

    A ready environment (``ENCODER_REFERENCE``) may have other versions than the lock file: its answers are not cached.

    Args:
        library: In whose environment it computes.
        given: All that the result depends on besides code, as arguments of ``library_answer``.
        compute: Called without arguments if no answer is cached; its result must pickle.
    """
    if os.environ.get(reference_environment.VARIABLE):
        return compute()
    lock = reference_environment.lock_file(library)
    key = digest((library, lock.read_bytes(), sys.version, _processor(), given))
    place = reference_environment.cache().with_name("answers") / key[:32]
    if place.is_file() and not os.environ.get(VARIABLE):
        modules, result = pickle.loads(place.read_bytes())
        if all(_file_digest(_place(name)) == of for name, of in modules.items()):
            os.utime(place)
            return result
    result = compute()
    modules = {name: _file_digest(_place(name)) for name in original(library).call(_IMPORTED)}
    _write(place, pickle.dumps((modules, result)))
    return result


def digest(given: Any) -> str:
    """Return a digest of a value; that of a path, or of a text that is the path of a test's file or folder, is that of its content.

    Raises:
        TypeError: It holds something else than numbers, texts, bytes, arrays, paths, and sequences and mappings of them.
    """
    found = hashlib.sha256()
    _update(found, given)
    return found.hexdigest()


def _update(found: hashlib._Hash, given: Any) -> None:
    """Add a value to a digest, with its type and size, so that what follows cannot be taken for a part of it."""
    match given:
        case None | bool() | int() | float():
            part = repr(given).encode()
        case Path() | str() if _is_file_or_folder(given):
            part = "".join(f"{name} {of}\n" for name, of in _content(Path(given))).encode()
        case Path() | str():
            part = str(given).encode()
        case bytes():
            part = given
        case np.ndarray() | np.generic():
            part = f"{given.dtype} {given.shape}".encode() + given.tobytes()
        case Mapping() | Sequence():
            found.update(f"{type(given).__name__} {len(given)}\n".encode())
            for entry in given.items() if isinstance(given, Mapping) else given:
                _update(found, entry)
            return
        case _:
            raise TypeError(f"the digest of a {type(given).__name__} is not defined")
    found.update(f"{type(given).__name__} {len(part)}\n".encode() + part)


def _is_file_or_folder(given: Path | str) -> bool:
    """Return whether a path is one of ours: texts of requests name other files, such as ``/``."""
    places = (tempfile.gettempdir(), reference_environment.cache().parent, sys.prefix, *roots())
    return any(Path(given).is_relative_to(place) for place in places) and os.path.exists(given)


def _content(path: Path) -> Iterable[tuple[str, str | None]]:
    """Yield the name of each file below a folder, or of the file itself, with the digest of its bytes."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    for file in files:
        yield str(file.relative_to(path)), _file_digest(file)


def _file_digest(path: Path) -> str | None:
    """Return the digest of a file's bytes, or None where there is no file."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return _bytes_digest(path, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@cache
def _bytes_digest(path: Path, *_stat: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _place(name: str) -> Path:
    """Return the path of a module of ours in this checkout; ``name`` is that below its root on the path."""
    number, _, below = name.partition("/")
    return roots()[int(number)] / below


@cache
def _processor() -> str:
    """Return what may decide the last bits of a sum."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").is_file() else []
    described = sorted({line for line in lines if line.startswith(("model name", "flags"))})
    return f"{platform.machine()} {os.environ.get('OMP_NUM_THREADS')} {described}"


def _write(place: Path, content: bytes) -> None:
    """Write a whole file or none."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=place.parent, prefix=".partial-", delete=False) as partial:
        partial.write(content)
    Path(partial.name).rename(place)
    _remove_outdated(place.parent)


@cache
def _remove_outdated(folder: Path) -> None:
    """Remove what nobody has used for long, once in this process."""
    oldest = time.time() - _DAYS * 86400
    for other in folder.iterdir():
        try:
            if other.stat().st_mtime < oldest:
                other.unlink()
        except FileNotFoundError:  # another process has removed it
            continue
