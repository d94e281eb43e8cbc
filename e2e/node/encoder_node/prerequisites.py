"""What this machine must have, reported in one line when it does not; Debian's part can be installed."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from encoder_node import progress
from encoder_node.errors import CommandFailedError, MissingPrerequisiteError

GO_MINIMUM = (1, 26)
PYTHON_MINIMUM = (3, 11)
HIDDEN = ("/run", "/var/lib", "/var/log", "/proc", "/sys", "/dev")
"""The node covers these folders with its own: nothing of ours may be below them."""


@dataclass(frozen=True, slots=True)
class Missing:
    """One thing that is not there, and Debian's package for it."""

    what: str
    package: str | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """A program on the PATH, a shared library, or a file that stands for a package without programs."""

    name: str
    package: str


ENGINE_PROGRAMS = (
    # torch.compile's code for CPUs
    Program("g++", "g++"),
    Program(f"{sysconfig.get_path('include')}/Python.h", "python3-dev"),
    # what tests find processes with
    Program("ps", "procps"),
    Program("pgrep", "procps"),
)
ENGINE_LIBRARIES = (Program("libnuma.so.1", "libnuma1"),)
"""Without them vLLM's operations for CPUs are missing, which an import of vLLM does not say."""
RUN_PROGRAMS = (
    Program("ip", "iproute2"),
    Program("nft", "nftables"),
    Program("iptables", "iptables"),
    Program("nsenter", "util-linux"),
    Program("unshare", "util-linux"),
    Program("mount", "mount"),
    Program("bash", "bash"),
)
BUILD_PROGRAMS = (
    Program("gcc", "gcc"),
    Program("pkg-config", "pkg-config"),
    Program("/usr/include/seccomp.h", "libseccomp-dev"),
    Program("/usr/include/stdlib.h", "libc6-dev"),
)


def parse_go_version(text: str) -> tuple[int, int] | None:
    """Returns (major, minor) from what `go env GOVERSION` prints, None if it is no version."""
    found = re.match(r"go(\d+)\.(\d+)", text.strip())
    return (int(found[1]), int(found[2])) if found else None


def missing_programs(programs: Iterable[Program]) -> list[Missing]:
    """Returns the programs and files that this machine lacks."""
    search = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return [
        Missing(program.name, program.package)
        for program in programs
        if not (
            Path(program.name).exists() if program.name.startswith("/") else shutil.which(program.name, path=search)
        )
    ]


def missing_for_engines() -> list[Missing]:
    """Returns what vLLM's engines for CPUs, and their tests, use, and this machine lacks."""
    found = missing_programs(ENGINE_PROGRAMS)
    for library in ENGINE_LIBRARIES:
        try:
            ctypes.CDLL(library.name)
        except OSError:
            found.append(Missing(library.name, library.package))
    return found


def missing_system(cache: Path) -> list[Missing]:
    """Returns what no package can mend: the operating system, the user, Python, the place of the cache."""
    found = []
    if platform.system() != "Linux":
        found.append(Missing(f"Linux (this is {platform.system()}; with Docker, kind is used instead)"))
    elif os.geteuid() != 0:
        found.append(Missing("root (the node makes namespaces, mounts and links)"))
    if sys.version_info < PYTHON_MINIMUM:
        found.append(
            Missing(f"Python >= {PYTHON_MINIMUM[0]}.{PYTHON_MINIMUM[1]} (this is {platform.python_version()})")
        )
    if any(cache.is_relative_to(folder) for folder in HIDDEN):
        found.append(Missing(f"a cache outside of {', '.join(HIDDEN)} (it is {cache}; set ENCODER_CACHE)"))
    if platform.system() == "Linux" and filesystem(cache, Path("/proc/self/mountinfo").read_text()) == "overlay":
        found.append(
            Missing(f"a cache that is not on an overlay file system (it is {cache}; set ENCODER_CACHE to a real disk)")
        )
    return found


def missing_go() -> list[Missing]:
    """Returns Go if it is not there or too old."""
    wanted = f"Go >= {GO_MINIMUM[0]}.{GO_MINIMUM[1]}"
    if shutil.which("go") is None:
        return [Missing(f"{wanted} (no `go` on the PATH; see go.dev/doc/install)")]
    answer = subprocess.run(
        ["go", "env", "GOVERSION"], capture_output=True, text=True, check=False, cwd="/"
    ).stdout.strip()
    version = parse_go_version(answer)
    return [] if version is not None and version >= GO_MINIMUM else [Missing(f"{wanted} (found {answer or 'none'})")]


def filesystem(path: Path, mountinfo: str) -> str:
    """Returns the type of the file system that holds a path (which need not exist), from /proc/self/mountinfo."""
    best, kind = Path("/"), ""
    for entry in mountinfo.splitlines():
        left, _, right = entry.partition(" - ")
        place = Path(left.split()[4].replace("\\040", " "))
        # a later mount on the same place covers an earlier one
        if path.is_relative_to(place) and (not kind or place.is_relative_to(best)):
            best, kind = place, right.split()[0]
    return kind


def sentence(missing: Sequence[Missing]) -> str:
    """Returns the one line that is printed."""
    packages = sorted({item.package for item in missing if item.package})
    line = "this machine lacks " + ", ".join(item.what for item in missing)
    return f"{line}; on Debian: apt-get install {' '.join(packages)}" if packages else line


def ensure(missing: Sequence[Missing], *, install: bool) -> None:
    """Installs what Debian has, if that is possible here, and refuses to go on without the rest.

    Args:
        missing: What is not there.
        install: Whether packages may be installed.

    Raises:
        MissingPrerequisiteError: Something is still missing.
    """
    packages = sorted({item.package for item in missing if item.package})
    if not missing:
        return
    if len(packages) == 0 or not install or os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise MissingPrerequisiteError(sentence(missing))
    rest = [item for item in missing if item.package is None]
    if rest:
        raise MissingPrerequisiteError(sentence(rest))
    clock = progress.Clock()
    apt_install(packages)
    progress.say("packages", f"{', '.join(packages)} installed", clock.seconds())


def apt_install(packages: Sequence[str]) -> None:
    """Installs Debian packages; refreshes the lists only when the packages are not found without that."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # another installation on this machine is waited for
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", *packages]
    result = None
    for command in (install, ["apt-get", "update", "-q"], install):
        result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=600)
        if command is install and result.returncode == 0:
            return
    if result is not None:
        raise CommandFailedError(install, result.returncode, result.stderr)
