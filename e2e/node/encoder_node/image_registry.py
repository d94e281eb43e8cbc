"""A real registry of images and charts for tests: distribution, with a folder as its storage."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from encoder_node import extra_programs, processes
from encoder_node.free_port import free_port
from encoder_node.waiting import wait_for

CONFIGURATION = """\
version: 0.1
log: {{level: info, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: "{folder}"}}, delete: {{enabled: true}}}}
http: {{addr: "127.0.0.1:{port}", secret: "of-a-test"}}
"""
AUTHENTICATION = """\
auth: {{htpasswd: {{realm: "registry", path: "{folder}/htpasswd"}}}}
"""
USER, PASSWORD = "somebody", "of-a-test"
# the bcrypt hash of PASSWORD
HTPASSWD = f"{USER}:$2b$05$/z.bvaCQb3i7qaOrbv8PdOe1vHs3.ecL18xH4YYmcMOLzRJFuUrG6\n"


@dataclass(frozen=True, slots=True)
class ImageRegistry:
    """A running registry.

    Attributes:
        host: Host and port; plain HTTP.
        storage: Its folder.
    """

    host: str
    storage: Path

    def blob(self, digest: str) -> Path:
        """Return the file of a blob."""
        algorithm, _, value = digest.partition(":")
        return self.storage / "docker/registry/v2/blobs" / algorithm / value[:2] / value / "data"


@contextmanager
def running(
    folder: Path,
    *,
    port: int = 0,
    around: Callable[[Sequence[str]], Sequence[str]] = tuple,
    credentials: bool = False,
) -> Iterator[ImageRegistry]:
    """Run a registry on the loopback interface while the block lasts.

    Args:
        folder: Configuration, log and storage.
        port: 0 takes any free one.
        around: Makes of the registry's command the one that is run, for example in the namespaces of a node.
        credentials: Whether it answers nobody but ``USER`` with ``PASSWORD``.
    """
    port = port or free_port()
    storage, configuration, log = folder / "storage", folder / f"registry-{port}.yaml", folder / f"registry-{port}.log"
    storage.mkdir(parents=True, exist_ok=True)
    text = CONFIGURATION.format(folder=storage, port=port)
    if credentials:
        (folder / "htpasswd").write_text(HTPASSWD)
        text += AUTHENTICATION.format(folder=folder)
    configuration.write_text(text)
    command = around([str(extra_programs.program("registry")), "serve", str(configuration)])
    with log.open("wb") as output, subprocess.Popen(list(command), stdout=output, stderr=output) as process:
        try:

            def ready() -> bool:
                if process.poll() is not None:
                    raise RuntimeError(f"the registry ended with {process.returncode}:\n{log.read_text()[-2000:]}")
                return b"listening on" in log.read_bytes()

            wait_for("the registry", ready, seconds=180)
            yield ImageRegistry(f"localhost:{port}", storage)
        finally:
            # in a node's namespaces the registry is a child of the program that enters them
            for pid in (*processes.children(process.pid), process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
