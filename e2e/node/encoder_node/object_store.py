"""A real S3 server for tests: versitygw over a folder, where each bucket is a folder in it."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from encoder_node import extra_programs
from encoder_node.free_port import free_port
from encoder_node.waiting import wait_for

ACCESS_KEY = "encoder-tests"
SECRET_KEY = "secret-of-the-object-store"


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A running server."""

    address: str
    """What clients call the endpoint."""
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY


@contextmanager
def running(
    folder: Path, *, host: str = "127.0.0.1", port: int = 0, options: Sequence[str] = (), versions: bool = False
) -> Iterator[ObjectStore]:
    """Runs a server while the block lasts.

    Args:
        folder: Where it keeps everything; the file system needs extended attributes.
        host: Where to listen.
        port: 0 takes any free one.
        options: Further options of versitygw's own, such as `--cert` and `--key`.
        versions: Whether buckets may keep versions of their objects.
    """
    buckets, log = folder / "buckets", folder / "log"
    buckets.mkdir(parents=True, exist_ok=True)
    port = port or free_port(host)
    command = [str(extra_programs.program("versitygw")), "--port", f"{host}:{port}", *options, "posix"]
    if versions:
        (folder / "versions").mkdir(exist_ok=True)
        command += ["--versioning-dir", str(folder / "versions")]
    environment = {"ROOT_ACCESS_KEY_ID": ACCESS_KEY, "ROOT_SECRET_ACCESS_KEY": SECRET_KEY, "PATH": ""}
    with (
        log.open("wb") as output,
        subprocess.Popen([*command, str(buckets)], env=environment, stdout=output, stderr=output) as process,
    ):
        try:

            def listening() -> bool:
                if process.poll() is not None:
                    raise RuntimeError(f"versitygw ended with {process.returncode}:\n{log.read_text()[-2000:]}")
                with socket.socket() as client:
                    return client.connect_ex((host, port)) == 0

            wait_for("the object store", listening, seconds=30)
            yield ObjectStore(f"{'https' if '--cert' in options else 'http'}://{host}:{port}")
        finally:
            process.terminate()
