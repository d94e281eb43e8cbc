from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGE = Path(__file__).parents[1]


def layers() -> set[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = [entry for entry in contracts if entry["type"] == "layers" and entry["containers"] == [PACKAGE.name]]
    return {module.strip() for layer in found["layers"] for module in layer.split("|")}


def modules() -> set[str]:
    files = [
        path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path.name not in {"__init__.py", "conftest.py"}
    ]
    return {".".join(path.with_suffix("").parts) for path in files if "tests" not in path.parts}


def test_every_module_has_a_layer() -> None:
    known = layers()
    assert {module for module in modules() if not any(f"{module}.".startswith(f"{layer}.") for layer in known)} == set()


def test_the_contract_about_kopf_names_every_module_that_may_not_import_it() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = [entry for entry in contracts if entry["name"] == "Kopf watches, and does nothing else"]
    named = [module.removeprefix(f"{PACKAGE.name}.") for module in found["source_modules"]]
    left = {module for module in modules() if not any(f"{module}.".startswith(f"{name}.") for name in named)}
    assert left == {"__main__", "client.credentials", "controller.watches", "manager.manager"}
