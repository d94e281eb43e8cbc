"""The base image `debian:bookworm-slim`, made on this machine: no registry is used.

It is what Debian's own slim image is (the minimal variant, no documentation, no translations), made by mmdebstrap, the
same bytes for the same state of Debian's archive. Where this machine has certificates or a pip configuration of its own,
they go into the base, so that the Dockerfiles need not know of them.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from encoder_node import layouts, prerequisites
from encoder_node.errors import CommandFailedError

SUITE = "bookworm"
NATIVE = "amd64"
# the kernel's handlers for programs of other architectures, and the name of QEMU's by architecture
EMULATORS = Path("/proc/sys/fs/binfmt_misc")
EMULATED = {"arm64": "qemu-aarch64"}
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LEFT_OUT = ("doc", "info", "locale", "man")
HOOKS = Path("/usr/share/mmdebstrap/hooks/merged-usr")
NEEDED = (
    prerequisites.Program("mmdebstrap", "mmdebstrap"),
    prerequisites.Program("/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring"),
)
# mmdebstrap tests with it that programs of another architecture run here
ARCH_TEST = prerequisites.Program("arch-test", "arch-test")
SLIM = {
    # as in Debian's own image: apt keeps no archives and no indexes of its own, which are 90 MB in each layer that uses it
    "/etc/apt/apt.conf.d/docker-clean": b"""\
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/archives/partial/*.deb /var/cache/apt/*.bin || true"; };
APT::Update::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/archives/partial/*.deb /var/cache/apt/*.bin || true"; };
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
""",
    "/etc/apt/apt.conf.d/docker-no-languages": b'Acquire::Languages "none";\n',
}
EPOCH = "1763596800"
"""The time of files that have no better one; with it the result depends on Debian's archive only."""


@dataclass(frozen=True, slots=True)
class Base:
    """An image that stands ready under a name that a FROM line uses."""

    layout: Path
    digest: str


def architectures(emulators: Path = EMULATORS) -> tuple[str, ...]:
    """Returns the architectures whose programs this machine runs."""
    found = [NATIVE]
    for architecture, name in EMULATED.items():
        entry = emulators / name
        if entry.is_file() and entry.read_text().startswith("enabled"):
            found.append(architecture)
    return tuple(found)


def bootstrap_command(archive: Path, architecture: str = NATIVE) -> list[str]:
    """Returns the command that makes the file system."""
    without = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in LEFT_OUT]
    return [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        *([] if architecture == NATIVE else [f"--architectures={architecture}"]),
        # without this hook a package is installed that merges /usr, and all of Perl with it: 50 MB
        f"--hook-dir={HOOKS}",
        "--skip=output/dev",
        '--aptopt=APT::Install-Recommends "false"',
        *without,
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
        # both come from this machine
        '--customize-hook=rm -f "$1/etc/resolv.conf" "$1/etc/hostname"',
        SUITE,
        str(archive),
    ]


def machine_files() -> dict[str, bytes]:
    """Returns what this machine needs for TLS and pip beyond what any machine has: content by path in the image."""
    own = sorted(Path("/usr/local/share/ca-certificates").glob("**/*.crt"))
    found = {str(file): file.read_bytes() for file in own}
    if own:
        bundle = Path(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))
        found["/etc/ssl/certs/ca-certificates.crt"] = bundle.read_bytes()
        # uv brings certificates of its own and uses the system's only when configured to
        found["/etc/uv/uv.toml"] = b"system-certs = true\n"
    for configuration in (Path("/etc/pip.conf"), Path("/etc/uv/uv.toml")):
        if configuration.is_file():
            found[str(configuration)] = configuration.read_bytes()
    return found


def fingerprint(files: dict[str, bytes], wanted: Sequence[str] = (NATIVE,)) -> str:
    """Returns the name of the cache's folder for this recipe and these files."""
    commands = [bootstrap_command(Path("archive"), architecture) for architecture in wanted]
    # of one architecture as it always was: every image that is cached was built on that base
    recipe = repr((commands[0] if len(commands) == 1 else commands, EPOCH, PATH, sorted(files.items())))
    return hashlib.sha256(recipe.encode()).hexdigest()[:16]


def provide(cache: Path, wanted: Sequence[str] = (NATIVE,)) -> Base:
    """Returns the base, made if it is not in the cache; of several architectures it is an index.

    Raises:
        MissingPrerequisiteError: mmdebstrap is not here and cannot be installed.
        CommandFailedError: It failed.
    """
    files = {**SLIM, **machine_files()}
    folder = cache / f"debian-{fingerprint(files, wanted)}"
    record = folder / "digest"
    if not record.exists():
        programs = NEEDED if len(wanted) == 1 else (*NEEDED, ARCH_TEST)
        prerequisites.ensure(prerequisites.missing_programs(programs), install=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        archive, layout = folder / "layer.tar", folder / "layout"
        manifests: dict[str, str] = {}
        for architecture in wanted:
            _bootstrap(archive, architecture)
            _append(archive, files)
            manifests[architecture] = layouts.write_layout(layout, archive, [PATH], architecture=architecture)
        record.write_text(layouts.write_index(layout, manifests) if len(wanted) > 1 else manifests[wanted[0]])
    return Base(folder / "layout", record.read_text())


def _bootstrap(archive: Path, architecture: str) -> None:
    command = bootstrap_command(archive, architecture)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH, "TMPDIR": str(archive.parent)}
    # emulated programs take about ten times as long
    seconds = 600 if architecture == NATIVE else 1800
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=seconds)
    if done.returncode != 0:
        raise CommandFailedError(command, done.returncode, done.stderr)


def _append(archive: Path, files: dict[str, bytes]) -> None:
    """Adds files to a tar; folders that it lacks come into being when it is unpacked."""
    with tarfile.open(archive, "a") as out:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(f".{name}")
            entry.size, entry.mode, entry.mtime = len(content), 0o644, int(EPOCH)
            out.addfile(entry, io.BytesIO(content))
