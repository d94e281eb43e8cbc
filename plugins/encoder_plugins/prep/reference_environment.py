"""Find or create the environment of an original library, and run recorders in it.

A prep image has its library's environment ready, and names it in ``ENCODER_REFERENCE``. Everywhere else uv creates it on
first use from ``images/reference/<library>/requirements.lock``, in the cache outside the checkout, keyed by the lock's
content and the interpreter's version. Environments that have files in common share them through uv's cache by hard links.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import encoder_plugins
from encoder_plugins import errors
from encoder_plugins.artifact.reference import Case, Recording
from encoder_plugins.errors import PrepareError, Unsupported
from encoder_plugins.parameters import Value
from encoder_plugins.plugin import Plugin
from encoder_plugins.prep import recorder as exchange

VARIABLE = "ENCODER_REFERENCE"
WORKER = "encoder_plugins.prep.record_worker"
# the file in an environment that names its library
LIBRARY = "library"

_PACKAGE = Path(encoder_plugins.__file__).parent.parent
_LOCKS = _PACKAGE.parent / "images" / "reference"


def provide(library: str) -> Path:
    """Return the environment of a library, creating it if this is its first use.

    Raises:
        Unsupported: The ready environment is another library's, or there is neither one nor a lock to make it from.
        PrepareError: uv could not create it.
    """
    if ready := os.environ.get(VARIABLE):
        folder = Path(ready)
        named = folder / LIBRARY
        found = named.read_text(encoding="utf-8").strip() if named.is_file() else "none"
        if found != library:
            raise Unsupported(f"{VARIABLE}={ready} has the library {found}; this plugin records with {library}")
        return folder
    lock = lock_file(library)
    if not lock.is_file():
        raise Unsupported(
            f"no environment of the library {library}: set {VARIABLE} to one, or run from a checkout with {lock}"
        )
    key = hashlib.sha256(lock.read_bytes() + repr(sys.version_info[:2]).encode()).hexdigest()[:16]
    folder = cache() / f"{library}-{key}"
    if not folder.exists():
        _create(folder, library, lock)
    return folder


def lock_file(library: str) -> Path:
    """Return the file of a checkout that pins a library and what it needs."""
    return _LOCKS / library / "requirements.lock"


def cache() -> Path:
    """Return the folder of created environments, outside the checkout."""
    root = os.environ.get("ENCODER_CACHE") or Path.home() / ".cache"
    return Path(root) / "encoder-operator" / "reference"


def python(environment: Path) -> Path:
    """Return an environment's interpreter."""
    return environment / "bin" / "python"


def record(
    plugin: Plugin,
    checkpoint: Path,
    auxiliary: Mapping[str, Path],
    cases: Sequence[Case],
    *,
    trust_remote_code: bool = False,
    parameters: Mapping[str, Value] = MappingProxyType({}),
) -> Recording:
    """Run a plugin's recorder in its library's environment.

    Args:
        plugin: Whose recorder.
        checkpoint: The checkpoint as it was published.
        auxiliary: Folders of the auxiliary repositories, by repository.
        cases: The inputs.
        trust_remote_code: Let the library run Python code of the checkpoint.
        parameters: The user's parameters of the preparation.

    Raises:
        PrepareError: The recorder refused the checkpoint, or failed.
    """
    environment = provide(plugin.reference_library)
    with tempfile.TemporaryDirectory(prefix="encoder-record-") as temporary:
        folder = Path(temporary)
        exchange.write_request(
            folder,
            recorder=plugin.recorder,
            checkpoint=checkpoint,
            auxiliary=auxiliary,
            cases=cases,
            trust_remote_code=trust_remote_code,
            parameters=parameters,
        )
        command = [str(python(environment)), "-m", WORKER, str(folder)]
        finished = subprocess.run(
            command, env=worker_environment(os.environ), cwd=folder, stdin=subprocess.DEVNULL, check=False
        )
        if (refused := folder / exchange.REFUSED).is_file():
            refusal = json.loads(refused.read_text(encoding="utf-8"))
            raise getattr(errors, refusal["class"])(refusal["message"])
        if finished.returncode != 0:
            raise PrepareError(
                f"the recorder of {plugin.name} ended with status {finished.returncode}; its log has the trace"
            )
        return exchange.read_recording(folder)


def worker_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a recorder's process: ours on the path and nothing else of Python's, no network."""
    kept = {name: value for name, value in given.items() if not name.startswith("PYTHON") and name != "VIRTUAL_ENV"}
    return kept | {
        "PYTHONPATH": str(_PACKAGE),
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": given.get("PYTHONDONTWRITEBYTECODE", ""),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        # however the library calls torch.load, a pickle gives it tensors and nothing else
        "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1",
    }


def _create(folder: Path, library: str, lock: Path) -> None:
    """Create an environment beside its place and move it there, so that it is never seen half created."""
    uv = shutil.which("uv")
    if uv is None:
        raise PrepareError(f"the environment of {library} is created with uv, which is not installed")
    with _locked(folder.with_suffix(".lock")):
        if folder.exists():
            return
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        _run([uv, "venv", "--no-config", "--quiet", "--relocatable", "--python", _base_interpreter(), str(partial)])
        _run(
            [
                uv,
                "pip",
                "install",
                "--no-config",
                "--quiet",
                "--python",
                str(python(partial)),
                "--no-deps",
                "--require-hashes",
                "--requirements",
                str(lock),
            ]
        )
        (partial / LIBRARY).write_text(library + "\n", encoding="utf-8")
        partial.rename(folder)


def _base_interpreter() -> str:
    """Return the interpreter behind this process's own virtual environment."""
    return getattr(sys, "_base_executable", None) or sys.executable


def _run(command: Sequence[str]) -> None:
    finished = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False)
    if finished.returncode != 0:
        raise PrepareError(f"{' '.join(command[:3])} failed: {finished.stderr.strip()[-500:]}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that another process on this machine waits for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
