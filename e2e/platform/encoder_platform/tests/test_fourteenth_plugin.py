"""A new plugin is a folder, and nothing else: everything that has plugins in it must find it there."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from encoder_checkpoints import samples
from encoder_node import targets
from encoder_operator.api.v1alpha1 import crd
from encoder_platform import chart_reference, plugin_table
from encoder_plugins import catalog, models
from encoder_plugins.__main__ import main
from encoder_plugins.plugin import Plugin, resolve
from encoder_plugins.prep.checkpoint import EngineSettings
from encoder_plugins.serving import command as serve
from encoder_plugins.serving import limits
from encoder_plugins.serving.command import Service
from encoder_plugins.serving.processor import ServingContext
from encoder_plugins.serving.tuning import Tuning

NAME = "fourteenth"
FOLDER = {
    "__init__.py": '''"""The fourteenth."""
from encoder_plugins.plugin import Plugin

PLUGIN = Plugin(
    name="fourteenth",
    summary="Whatever comes next.",
    task="token_classify",
    processor="encoder_plugins.models.fourteenth.requests:Processor",
    checkpoint="encoder_plugins.models.fourteenth.checkpoint",
    recorder="encoder_plugins.models.fourteenth.reference:record",
    parity="encoder_plugins.models.fourteenth.parity:PARITY",
    prep_version=1,
    reference_library="fourteenth",
    dtypes=(("cpu", "float32"), ("nvidia", "bfloat16")),
    example_model="example/fourteenth",
    architectures={"FourteenthModel": "encoder_plugins.models.fourteenth.model:FourteenthModel"},
)
''',
    "requests.py": "class Processor:\n    def __init__(self, context):\n        self.context = context\n",
    "parity.py": "PARITY = object()\n",
    "reference.py": "def record(model):\n    return model\n",
    "model.py": "class FourteenthModel:\n    pass\n",
    "tests/sample.py": "DEMO = {'text': 'a'}\n\n\ndef build(folder):\n    return folder / 'built'\n",
}


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    """The declaration, found by its folder."""
    for path, content in FOLDER.items():
        file = tmp_path / NAME / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    catalog.plugins.cache_clear()
    importlib.invalidate_caches()
    yield catalog.get(NAME)
    catalog.plugins.cache_clear()
    for module in [name for name in sys.modules if name.startswith(f"encoder_plugins.models.{NAME}")]:
        del sys.modules[module]


def test_the_catalogue_and_the_command_list_it(plugin: Plugin, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(catalog.plugins()) == sorted(catalog.plugins())
    assert main(["list", "--json"]) == 0
    assert NAME in [found["name"] for found in json.loads(capsys.readouterr().out)]


def test_the_engine_is_started_with_its_arguments(plugin: Plugin) -> None:
    service = Service(artifact=Path("/a"), name="m", port=1, accelerator="nvidia", limits=limits.defaults(plugin))
    checkpoint = EngineSettings(arguments=("--no-enable-prefix-caching",))
    command = serve.command(service, plugin, checkpoint, Tuning(engines=1, api_servers=1), "python")
    assert command[-1] == "--no-enable-prefix-caching"


@pytest.mark.filterwarnings("ignore")
def test_its_requests_are_parsed_by_its_own_processor(plugin: Plugin) -> None:
    from encoder_plugins.serving import engine

    context = ServingContext(model=Path("/a"), max_model_len=8, names=("m",), limits=limits.defaults(plugin))
    made = engine.build(plugin, context)
    assert type(made) is resolve(plugin.processor)
    assert made.context is context  # type: ignore[attr-defined]


def test_vllm_learns_its_architecture(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    import encoder_plugins

    registered: dict[str, str] = {}
    registry = SimpleNamespace(register_model=registered.__setitem__)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.32.0", ModelRegistry=registry))
    monkeypatch.delenv("ENCODER_PLUGINS_DISABLED", raising=False)
    encoder_plugins.register()
    assert registered["FourteenthModel"] == "encoder_plugins.models.fourteenth.model:FourteenthModel"
    assert resolve(registered["FourteenthModel"]).__name__ == "FourteenthModel"


def test_the_cluster_accepts_it(plugin: Plugin) -> None:
    (version,) = crd.build()["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert spec["properties"]["plugin"]["enum"] == sorted(catalog.plugins())
    assert NAME in spec["properties"]["plugin"]["enum"]


def test_it_has_images(plugin: Plugin) -> None:
    found = {target.name: target for target in targets.current()}
    assert {f"engine-{NAME}-cpu", f"engine-{NAME}-cuda", f"prep-{NAME}"} <= set(found)
    assert found[f"prep-{NAME}"].arguments == {"PLUGIN": NAME, "REFERENCE": NAME}
    assert f"prep-{NAME}" in targets.bake(found.values())["group"]["cpu"]["targets"]


def test_the_chart_has_images_for_it(plugin: Plugin) -> None:
    (text,) = (text for path, text in chart_reference.files().items() if path.name == "plugins.yaml")
    assert f"- {NAME}\n" in text


def test_it_is_in_the_documentation(plugin: Plugin) -> None:
    row = next(line for line in plugin_table.table(catalog.plugins().values()).splitlines() if NAME in line)
    assert "Whatever comes next." in row
    assert "`FourteenthModel`" in row


def test_prep_and_parity_find_its_side_of_them(plugin: Plugin) -> None:
    assert resolve(plugin.recorder)("model") == "model"
    assert type(resolve(plugin.parity)) is object


def test_it_is_in_the_matrices_of_engine_and_cluster(plugin: Plugin, tmp_path: Path) -> None:
    found = {sample.name: sample for sample in samples.samples()}
    assert list(found) == list(catalog.plugins())
    assert found[NAME].build(tmp_path) == tmp_path / "built"
    assert found[NAME].demo == {"text": "a"}
