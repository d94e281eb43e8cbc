"""Builds images with BuildKit, from the programs that `build` makes: no Docker, no registry, the same Dockerfiles.

The daemon lives as long as a `with` block: in mount and process namespaces of its own, so that ending it ends all, but
with the machine's network, by which RUN steps reach package archives.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from encoder_node import processes
from encoder_node.control_groups import ROOT as CGROUPS
from encoder_node.control_groups import ControlGroups
from encoder_node.errors import CommandFailedError, NodeError
from encoder_node.layouts import is_hollow
from encoder_node.rootfs import Base
from encoder_node.targets import ROOT, Target
from encoder_node.waiting import exclusive, wait_for

SHARED_SIZE = 1 << 20
"""Smaller blobs are cheaper to copy than to think about, in bytes."""
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
"""Dockerfiles take these as build arguments without a declaration, and images do not keep them."""
START = """\
set -e
cat /etc/resolv.conf > "$1/resolv.conf"
mount -t tmpfs tmpfs /run
# the name servers may have been a link into what is covered now
test -e /etc/resolv.conf || { mkdir -p "$(dirname "$(readlink -m /etc/resolv.conf)")"; cp "$1/resolv.conf" "$(readlink -m /etc/resolv.conf)"; }
shift
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class BuildKit:
    """A running daemon."""

    programs: Path
    state: Path
    bases: Mapping[str, Base] = field(default_factory=dict)
    """What a FROM line may name without a registry."""
    build_seconds: float = 1800

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"unix://{self.state}/socket"

    def build(self, target: Target, layout: Path, *, context: Path = ROOT, platforms: Sequence[str] = ()) -> str:
        """Builds an image into a layout, and returns its manifest's digest; of several platforms that of their index.

        Layers are not compressed, and those that the layout has are not written again.

        Raises:
            CommandFailedError: A step failed; the log is named.
            NodeError: It took too long.
        """
        if platforms:
            return self._solve(target, context, f"type=oci,tar=false,dest={layout}", platforms)
        mark = layout / "shared" / heavy_inputs(target, context, self.bases, self.worker)
        if not mark.exists():
            # BuildKit makes a layer's archive in a store of its own, and would then copy it to the layout: 6 GB, 44 s.
            # So it makes them first, and the layout gets them as second names of the same files.
            self._solve(target, context, "type=image,push=false")
            share_blobs(self.blobs, layout)
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        return self._solve(target, context, f"type=oci,tar=false,dest={layout}")

    @property
    def worker(self) -> str:
        """What distinguishes this cache from one that was there before it."""
        return (self.state / "root/runc-overlayfs/workerid").read_text()

    @property
    def blobs(self) -> Path:
        """The daemon's own store of archives."""
        return self.state / "root/runc-overlayfs/content/blobs/sha256"

    @property
    def snapshots(self) -> Path:
        """Where the daemon keeps layers unpacked."""
        return self.state / "root/runc-overlayfs/snapshots/snapshots"

    def _solve(self, target: Target, context: Path, output: str, platforms: Sequence[str] = ()) -> str:
        log = self.state / "log" / f"{target.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        result = self.state / "result.json"
        result.unlink(missing_ok=True)
        command = [str(self.programs / "buildctl"), "--addr", self.address, "build", "--progress", "plain"]
        proxies = {name: os.environ[name] for name in PROXIES if name in os.environ}
        command += build_options(target, context, self.bases, proxies, platforms)
        command += ["--metadata-file", str(result)]
        command += ["--output", f"{output},compression=uncompressed,oci-mediatypes=true"]
        with log.open("wb") as out:
            try:
                code = subprocess.run(
                    command, stdout=out, stderr=subprocess.STDOUT, check=False, timeout=self.build_seconds
                ).returncode
            except subprocess.TimeoutExpired:
                raise NodeError(f"{target.name}: not built after {self.build_seconds:g} s", log=log) from None
        if code != 0:
            raise CommandFailedError(command, code, log=log)
        digest: str = json.loads(result.read_text())["containerimage.digest"]
        return digest

    def answers(self) -> bool:
        """Whether it takes orders; its socket is there some time before that."""
        command = [str(self.programs / "buildctl"), "--addr", self.address, "debug", "workers"]
        try:
            return subprocess.run(command, capture_output=True, check=False, timeout=10).returncode == 0
        except subprocess.TimeoutExpired:  # a machine that is busy with tests: `running` tries until its time is over
            return False


def heavy_inputs(target: Target, context: Path, bases: Mapping[str, Base], worker: str) -> str:
    """Returns a name for what the large layers of an image follow from; our own code is not among it."""
    digest = hashlib.sha256(repr((worker, target.stage, sorted(target.arguments.items()))).encode())
    for file in (target.dockerfile, "uv.lock"):
        digest.update((context / file).read_bytes())
    for base in sorted(base.digest for base in bases.values()):
        digest.update(base.encode())
    return digest.hexdigest()


def share_blobs(store: Path, layout: Path) -> None:
    """Gives every large blob of a store a second name in a layout; both must be on one file system."""
    target = layout / "blobs" / "sha256"
    target.mkdir(parents=True, exist_ok=True)
    for blob in store.iterdir():
        if blob.stat().st_size < SHARED_SIZE:
            continue
        if (target / blob.name).exists() and is_hollow(target / blob.name):
            (target / blob.name).unlink()
        if not (target / blob.name).exists():
            os.link(blob, target / blob.name)


def build_options(
    target: Target,
    context: Path,
    bases: Mapping[str, Base],
    proxies: Mapping[str, str],
    platforms: Sequence[str] = (),
) -> list[str]:
    """Returns the options of `buildctl build` that say what to build."""
    dockerfile = context / target.dockerfile
    options = [
        "--frontend",
        "dockerfile.v0",
        "--local",
        f"context={context}",
        "--local",
        f"dockerfile={dockerfile.parent}",
    ]
    options += ["--opt", f"filename={dockerfile.name}", "--opt", f"target={target.stage}"]
    options += ["--opt", f"platform={','.join(platforms)}"] if platforms else []
    for name, value in {**proxies, **target.arguments}.items():
        options += ["--opt", f"build-arg:{name}={value}"]
    for number, (name, base) in enumerate(sorted(bases.items())):
        # the key must be the short name: with a host in front it is not looked at
        options += ["--opt", f"context:{name}=oci-layout://base{number}@{base.digest}"]
        options += ["--oci-layout", f"base{number}={base.layout}"]
    return options


def sweep(layout: Path, kept: Collection[str]) -> None:
    """Removes large blobs from a layout that BuildKit has dropped from its cache.

    Args:
        layout: The layout.
        kept: Digests of blobs that stay in any case.
    """
    for blob in (layout / "blobs" / "sha256").iterdir():
        found = blob.stat()
        if found.st_size >= SHARED_SIZE and found.st_nlink == 1 and f"sha256:{blob.name}" not in kept:
            blob.unlink()


def group(state: Path) -> str:
    """Returns the name of the control group of RUN steps; builders with different caches do not share it."""
    return f"encoder-buildkit-{hashlib.sha256(str(state).encode()).hexdigest()[:8]}"


def configuration(state: Path, programs: Path) -> str:
    """Returns the daemon's configuration."""
    return f"""\
root = "{state}/root"
[grpc]
  address = ["unix://{state}/socket"]
[worker.oci]
  # without this line the worker is skipped, whatever `binary` says
  enabled = true
  binary = "{programs}/runc"
  snapshotter = "overlayfs"
  networkMode = "host"
  defaultCgroupParent = "/{group(state)}"
  gc = true
  # the sizes that BuildKit adds up count a large layer twice, and its order of removal knows nothing of what costs minutes
  # to make again: what was used these days stays, whatever its size
  [[worker.oci.gcpolicy]]
    all = true
    keepDuration = "48h"
    maxUsedSpace = "30GB"
[worker.containerd]
  enabled = false
"""


@contextmanager
def running(programs: Path, state: Path, bases: Mapping[str, Base], *, seconds: float = 300) -> Iterator[BuildKit]:
    """Runs the daemon for the length of a `with` block.

    Args:
        programs: The folder with buildkitd, buildctl and runc.
        state: Where it keeps its cache and its log.
        bases: What FROM lines may name.
        seconds: The longest to wait for it.

    Raises:
        WaitTimeoutError: It did not start, or another one is running.
    """
    state.mkdir(parents=True, exist_ok=True)
    with exclusive(state / "lock", "the images' builder", seconds=1800):
        (state / "buildkitd.toml").write_text(configuration(state, programs))
        log, scratch = state / "buildkitd.log", state / "tmp"
        # the daemon leaves its mount points behind, empty: in the machine's own /tmp there would be more with each build
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        environment = {**os.environ, "TMPDIR": str(scratch)}
        with log.open("wb") as out:
            daemon = subprocess.Popen(
                _daemon_command(programs, state), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment
            )
        client = BuildKit(programs, state, bases)

        def still_there() -> None:
            if daemon.poll() is not None:
                raise NodeError(f"buildkitd ended with {daemon.returncode}", log=log)

        try:
            wait_for("buildkitd", client.answers, seconds=seconds, log=log, check=still_there)
            yield client
        finally:
            _stop(daemon)
            (state / "socket").unlink(missing_ok=True)
            remove_groups(group(state))


def _stop(daemon: subprocess.Popen[bytes], *, seconds: float = 15) -> None:
    """Ends the daemon: politely, since it still writes down what it has in its cache; if need be not."""
    for child in processes.children(daemon.pid):
        os.kill(child, signal.SIGTERM)
    try:
        daemon.wait(seconds)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _daemon_command(programs: Path, state: Path) -> list[str]:
    # each of the three ends with the one before it: this program, setpriv's and unshare's child, everything in its namespace
    namespaces = [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child=KILL",
        "--mount-proc",
        "--propagation",
        "private",
    ]
    daemon = [str(programs / "buildkitd"), "--config", str(state / "buildkitd.toml")]
    return ["setpriv", "--pdeathsig", "KILL", *namespaces, "sh", "-c", START, "-", str(state), *daemon]


def remove_groups(name: str) -> None:
    """Removes the control groups of RUN steps."""
    ControlGroups(name).remove()
    # on a machine with both versions runc makes one in the second, too, which has no controllers
    for folder, _, _ in os.walk(CGROUPS / "unified" / name, topdown=False):
        os.rmdir(folder)
