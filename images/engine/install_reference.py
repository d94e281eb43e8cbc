"""Install an original library into /opt/reference: `python install_reference.py LIBRARY`, where /reference/LIBRARY has its lock.

Torch and NVIDIA's libraries are most of such an environment. Where all of them are in /opt/venv in the very same versions, they
are linked instead of installed, so that the image holds them once; else none is, since they share folders. Standard library only.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SHARED = re.compile(r"(torch|triton|nvidia-[a-z0-9-]+|cuda-[a-z-]+)==")
ENVIRONMENT, ENGINE, LOCKS = Path("/opt/reference"), Path("/opt/venv"), Path("/reference")
UV = "/opt/uv"


def pins(lock: str) -> Iterator[tuple[str, str]]:
    """Return name==version and the whole entry, hashes included, of each pin in a lock."""
    for entry in re.split(r"\n(?=\S)", lock.strip()):
        yield entry.split()[0], entry


def packages(environment: Path) -> Path:
    """Return the folder of an environment's packages."""
    (found,) = environment.glob("lib/python3*/site-packages")
    return found


def installed(name_and_version: str) -> Path | None:
    """Return the metadata folder of a distribution in the engine's environment; None if it is not there in this version."""
    name, _, version = name_and_version.partition("==")
    folder = packages(ENGINE) / f"{name.replace('-', '_')}-{version}.dist-info"
    return folder if folder.is_dir() else None


def link(metadata: Path) -> None:
    """Link the top-level folders and files of a distribution into the environment."""
    tops = {line.split(",")[0].split("/")[0] for line in (metadata / "RECORD").read_text().splitlines()}
    for top in sorted(tops - {"..", "__pycache__"}):
        place = packages(ENVIRONMENT) / top
        if not place.is_symlink():
            place.symlink_to(packages(ENGINE) / top)


def main(library: str) -> None:
    """Make the environment."""
    base = os.path.realpath(ENGINE / "bin" / "python")
    environment = {**os.environ, "UV_NO_CACHE": "1", "UV_PYTHON_DOWNLOADS": "never"}
    subprocess.run([UV, "venv", "--quiet", "--python", base, str(ENVIRONMENT)], env=environment, check=True)
    entries = dict(pins((LOCKS / library / "requirements.lock").read_text()))
    found = {pin: installed(pin) for pin in entries if SHARED.match(pin)}
    shared = [metadata for metadata in found.values() if metadata is not None]
    if len(shared) == len(found):
        for metadata in shared:
            link(metadata)
    else:
        found = {}
    wanted = [entry for pin, entry in entries.items() if pin not in found]
    requirements = Path("/tmp/requirements.txt")
    requirements.write_text("\n".join(wanted) + "\n")
    command = [UV, "pip", "install", "--python", str(ENVIRONMENT / "bin" / "python"), "--no-deps", "--require-hashes"]
    subprocess.run([*command, "--requirements", str(requirements)], env=environment, check=True)
    requirements.unlink()
    # links are left out: what they lead to has its bytecode
    own = [
        str(path) for path in packages(ENVIRONMENT).iterdir() if not path.is_symlink() and path.name != "__pycache__"
    ]
    compiling = [str(ENVIRONMENT / "bin" / "python"), "-m", "compileall", "-qq", "-j", "0"]
    # some packages carry files that are not Python of this version: they are never imported
    subprocess.run([*compiling, "--invalidation-mode", "unchecked-hash", *own], check=False)
    (ENVIRONMENT / "library").write_text(library + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
