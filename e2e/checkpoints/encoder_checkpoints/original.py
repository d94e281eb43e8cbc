"""Call functions in the environment of an original library, from tests and benchmarks that run without it.

One worker process for each library, started on first use; functions are named as ``"module:function"``, and arguments and
results are pickled. A function's module may keep what it loaded for the next call.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import pickle
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import IO, Any

import encoder_plugins
from encoder_plugins.prep import reference_environment

_PLUGINS = Path(encoder_plugins.__file__).parent.parent
_HERE = Path(__file__).parent


class OriginalError(Exception):
    """A function raised in a library's process; the message is the error's."""


class Original:
    """A worker process in the environment of ``library``."""

    def __init__(self, library: str) -> None:
        environment = reference_environment.provide(library)
        variables = reference_environment.worker_environment(os.environ)
        variables["PYTHONPATH"] = os.pathsep.join(map(str, roots()))
        command = [
            str(reference_environment.python(environment)),
            "-W",
            "ignore",
            "-m",
            f"{__package__}.original_worker",
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables)
        self._lock = threading.Lock()
        atexit.register(self.close)

    def call(self, function: str, *arguments: Any, **options: Any) -> Any:
        """Call a function and return its result.

        Args:
            function: ``"module:function"``.
            arguments: Anything that pickles without the library.
            options: Likewise.

        Raises:
            OriginalError: The function raised.
        """
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            send(self._process.stdin, (function, arguments, options))
            status, result = receive(self._process.stdout)
        if status == "raised":
            raise OriginalError(result)
        return result

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
        atexit.unregister(self.close)


def roots() -> tuple[Path, Path]:
    """Return the folders of this checkout whose modules a worker can import."""
    return _PLUGINS, _HERE.parent


@cache
def original(library: str) -> Original:
    """Return this process's worker for a library."""
    return Original(library)


def built(library: str, builder: str, *arguments: Any, **options: Any) -> Path:
    """Return the folder of a checkpoint that a builder writes, building it only once on this machine.

    The cache lies outside the checkout, keyed by the sources of the builders, the library's lock and the arguments. Nobody may
    change what is in it: copy the folder first.

    Args:
        library: In whose environment the builder runs.
        builder: ``"module:function"``, called with the folder to write and the arguments.
        arguments: Plain values.
        options: Plain values.
    """
    key = hashlib.sha256(repr((builder, arguments, sorted(options.items()))).encode())
    for source in _sources(builder, library):
        key.update(source.read_bytes())
    place = reference_environment.cache().with_name("checkpoints") / key.hexdigest()[:24]
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not place.exists():
                partial = place.with_suffix(".partial")
                shutil.rmtree(partial, ignore_errors=True)
                original(library).call(builder, partial, *arguments, **options)
                partial.rename(place)
    return place


def _sources(builder: str, library: str) -> Iterable[Path]:
    """Return the files that decide what a builder writes."""
    yield from sorted(_HERE.glob("*.py"))
    yield from sorted(_HERE.glob("learned/*.json"))
    module = builder.partition(":")[0].replace(".", "/") + ".py"
    yield from (path for root in roots() if (path := root / module).is_file())
    yield reference_environment.lock_file(library)


def send(stream: IO[bytes], value: object) -> None:
    """Write a value and its length."""
    content = pickle.dumps(value)
    stream.write(struct.pack("<Q", len(content)) + content)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Read what ``send`` wrote.

    Raises:
        EOFError: The other side has ended.
    """
    header = stream.read(8)
    if len(header) < 8:
        raise EOFError("the process of the original library has ended; its last lines are on standard error")
    return pickle.loads(stream.read(*struct.unpack("<Q", header)))
