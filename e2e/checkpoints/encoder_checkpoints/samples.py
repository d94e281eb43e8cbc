"""What tests, the demo and fuzzing take a plugin from: `tests/sample.py` in its folder, found through the catalogue.

So a new plugin comes to every matrix by its folder alone. The file holds `build(folder) -> Path`, which writes a small
checkpoint as users publish it, and `DEMO`, the data of a request that shows something.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib
import importlib.util
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import encoder_plugins
from encoder_plugins import catalog
from encoder_plugins.plugin import Plugin
from encoder_plugins.prep import reference_environment

FILE = "tests/sample.py"
_PLUGINS = Path(encoder_plugins.__file__).parent.parent
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Sample:
    """A plugin, and how to try it.

    Attributes:
        plugin: Its declaration.
        build: Writes a small checkpoint below a folder; returns where it is.
        demo: The data of a request that shows something.
    """

    plugin: Plugin
    build: Callable[[Path], Path]
    demo: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The plugin's name."""
        return self.plugin.name


def samples() -> list[Sample]:
    """Return one for each plugin of the catalogue."""
    return [of(plugin) for plugin in catalog.plugins().values()]


def of(plugin: Plugin) -> Sample:
    """Return a plugin's sample.

    Raises:
        FileNotFoundError: Its folder has none.
    """
    package = importlib.import_module(f"encoder_plugins.models.{plugin.name}")
    path = Path(str(package.__file__)).parent / FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path}: every plugin brings a sample for the matrices of tests")
    # tests are no package: the module is loaded by its path
    spec = importlib.util.spec_from_file_location(f"encoder_sample_{plugin.name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Sample(plugin, module.build, module.DEMO)


def prepare(sample: Sample, folder: Path, *options: str) -> Path:
    """Build a plugin's sample checkpoint and prepare it as the prep image does, with options of the command.

    The same code has the same outcome, which several suites want: without options they copy it from a cache outside the checkout.

    Args:
        sample: Of a plugin.
        folder: Gets sources/PLUGIN and artifacts/PLUGIN.
        options: Of ``encoder-plugins prepare``.

    Returns:
        The artifact's folder.

    Raises:
        RuntimeError: It could not be prepared.
    """
    artifact = folder / "artifacts" / sample.name
    if options:
        return _prepare(sample, folder, *options)
    if not artifact.exists():
        _copy_prepared(sample, folder)
    return artifact


def _copy_prepared(sample: Sample, folder: Path) -> None:
    """Copy a sample and its artifact from the cache, which has them as today's code makes them and no others."""
    lock = reference_environment.lock_file(sample.plugin.reference_library)
    key = hashlib.sha256(f"{sample.name} {_code()}".encode() + lock.read_bytes())
    place = reference_environment.cache().with_name("samples") / sample.name
    prepared = place / key.hexdigest()[:24]
    place.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not prepared.exists():
            for outdated in place.iterdir():
                shutil.rmtree(outdated)
            partial = place / "partial"
            _prepare(sample, partial)
            partial.rename(prepared)
        shutil.copytree(prepared, folder, symlinks=True, dirs_exist_ok=True)


@cache
def _code() -> str:
    """Return a digest of everything that decides what a sample and its artifact are."""
    root = _PLUGINS.parent
    folders = (_PLUGINS / "encoder_plugins", root / "kernels" / "encoder_kernels", _HERE)
    files = sorted(path for folder in folders for path in (*folder.rglob("*.py"), *folder.rglob("*.json")))
    # samples use what stands beside tests, and no test
    deciding = [path for path in files if not path.name.startswith("test_")]
    digests = [(str(path.relative_to(root)), hashlib.sha256(path.read_bytes()).hexdigest()) for path in deciding]
    return hashlib.sha256(repr((digests, sys.version)).encode()).hexdigest()


def _prepare(sample: Sample, folder: Path, *options: str) -> Path:
    from encoder_checkpoints.recording import by_workers
    from encoder_plugins.__main__ import main

    source, artifact = folder / "sources" / sample.name, folder / "artifacts" / sample.name
    if not artifact.exists():
        built = sample.build(source).resolve()
        with by_workers(), warnings.catch_warnings():
            # transformers warns about itself
            warnings.simplefilter("ignore")
            status = main(["prepare", sample.name, str(built), str(artifact), *options])
        if status:
            raise RuntimeError(f"the sample of {sample.name} could not be prepared; the lines above say why")
    return artifact


def main(arguments: Sequence[str] | None = None) -> int:
    """Build and prepare samples: `python -m encoder_checkpoints.samples FOLDER [PLUGIN…]`."""
    parser = argparse.ArgumentParser(prog="python -m encoder_checkpoints.samples", description=main.__doc__)
    parser.add_argument("folder", type=Path, help="gets sources/PLUGIN and artifacts/PLUGIN")
    parser.add_argument("plugins", nargs="*", help="by default every plugin of the catalogue")
    given = parser.parse_args(arguments)
    failed = []
    for name in given.plugins or catalog.plugins():
        try:
            prepare(of(catalog.get(name)), given.folder.absolute())
        except Exception as error:  # another plugin's sample may still be of use
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
