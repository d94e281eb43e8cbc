"""What tests, the demo and fuzzing take a plugin from: `tests/sample.py` in its folder, found through the catalogue.

So a new plugin comes to every matrix by its folder alone. The file holds `build(folder) -> Path`, which writes a small
checkpoint as people publish it, and `DEMO`, the data of a request that shows something.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encoder_plugins import catalog
from encoder_plugins.plugin import Plugin

FILE = "tests/sample.py"


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
