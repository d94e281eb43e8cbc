"""The catalogue, and what every declaration in it must hold."""

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import encoder_plugins
from encoder_plugins import catalog, models
from encoder_plugins.errors import UnknownPlugin
from encoder_plugins.plugin import Plugin, resolve

EVERY = [pytest.param(plugin, id=plugin.name) for plugin in catalog.plugins().values()]


def test_an_unknown_plugin_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownPlugin, match="sentence_transformer"):
        catalog.get("sentence-transformer")


def test_looking_at_the_catalogue_imports_nothing_heavy() -> None:
    code = (
        "import sys; from encoder_plugins import catalog; catalog.plugins();"
        "print(sorted({'torch', 'vllm', 'pydantic', 'numpy'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown.strip() == "[]"


def test_the_entry_points_are_still_functions_when_everything_is_imported() -> None:
    modules = {entry.name for entry in pkgutil.iter_modules(encoder_plugins.__path__)}
    assert not modules & {"register", "io_processor", "platform"}


@pytest.mark.parametrize("plugin", EVERY)
def test_a_declaration_is_called_as_its_folder_and_explained_in_it(plugin: Plugin) -> None:
    folder = Path(models.__path__[0]) / plugin.name
    assert plugin.name.isidentifier()
    assert (folder / "README.md").is_file()
    assert set(dict(plugin.dtypes)) == {"cpu", "nvidia"}


@pytest.mark.parametrize("plugin", EVERY)
def test_the_parity_side_of_a_declaration_resolves_and_covers_its_dtypes(plugin: Plugin) -> None:
    parity = resolve(plugin.parity)
    assert set(dict(plugin.dtypes).values()) <= set(parity.tolerances)


@pytest.mark.parametrize("plugin", EVERY)
def test_the_parity_side_needs_no_torch(plugin: Plugin) -> None:
    module = plugin.parity.partition(":")[0]
    code = (
        f"import sys, encoder_plugins.parity.client, {module}; print('torch' in sys.modules or 'vllm' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown.strip() == "False"
