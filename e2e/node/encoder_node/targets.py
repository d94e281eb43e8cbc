"""Which images there are: derived from the catalogue of plugins, and written down as a file for `docker buildx bake`.

Pure, but for the command at the end: `python -m encoder_node.targets [--check]` writes `images/docker-bake.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from encoder_plugins import catalog
from encoder_plugins.plugin import Plugin

ROOT = Path(__file__).resolve().parents[3]
"""The repository: every image's build context."""
BAKE_FILE = ROOT / "images" / "docker-bake.json"
PREFIX = "encoder-operator"
TESTS_ONLY = "e2e"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One image."""

    name: str
    """What it is called here and in the bake file."""
    reference: str
    """The name and tag that clusters know it by."""
    dockerfile: str
    """Path from the repository's root."""
    stage: str
    """The stage of the Dockerfile."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Build arguments."""


def targets(plugins: Iterable[Plugin], version: str) -> list[Target]:
    """Returns every image: the operator, three for each plugin, and the tests' own."""
    found = [
        Target(
            name="operator",
            reference=f"{PREFIX}/operator:{version}",
            dockerfile="images/operator/Dockerfile",
            stage="operator",
        )
    ]
    for plugin in plugins:
        found += _of_plugin(plugin, version)
    hub = Target(
        name=TESTS_ONLY, reference=f"{PREFIX}/e2e:{version}", dockerfile="e2e/hub/Dockerfile", stage=TESTS_ONLY
    )
    return [*found, hub]


def _of_plugin(plugin: Plugin, version: str) -> list[Target]:
    dockerfile, arguments = "images/engine/Dockerfile", {"PLUGIN": plugin.name}
    engines = [
        Target(
            name=f"engine-{plugin.name}-{kind}",
            reference=f"{PREFIX}/engine-{plugin.name}:{version}-{kind}",
            dockerfile=dockerfile,
            stage=kind,
            arguments={**arguments, **({"EXTRA": plugin.extra} if plugin.extra else {})},
        )
        for kind in ("cpu", "cuda")
    ]
    prep = Target(
        name=f"prep-{plugin.name}",
        reference=f"{PREFIX}/prep-{plugin.name}:{version}",
        dockerfile=dockerfile,
        stage="prep",
        arguments={**arguments, "REFERENCE": plugin.reference_library},
    )
    return [*engines, prep]


def for_cpu_nodes(all_targets: Iterable[Target]) -> list[Target]:
    """Returns the images that a cluster without GPUs can use."""
    return [target for target in all_targets if target.stage != "cuda"]


def bake(all_targets: Iterable[Target]) -> dict[str, Any]:
    """Returns the content of the bake file. Its default group is everything that a release has."""
    chosen = list(all_targets)
    described = {
        target.name: {
            "context": ".",
            "dockerfile": target.dockerfile,
            "target": target.stage,
            **({"args": dict(target.arguments)} if target.arguments else {}),
            "tags": [target.reference],
        }
        for target in chosen
    }
    release = [target.name for target in chosen if target.name != TESTS_ONLY]
    groups = {
        "default": {"targets": release},
        "cpu": {"targets": [target.name for target in for_cpu_nodes(chosen)]},
    }
    return {"group": groups, "target": described}


def project_version(pyproject: str) -> str:
    """Returns the version that a pyproject.toml declares."""
    version: str = tomllib.loads(pyproject)["project"]["version"]
    return version


def current() -> list[Target]:
    """Returns the images of this checkout."""
    return targets(catalog.plugins().values(), project_version((ROOT / "pyproject.toml").read_text()))


def rendered() -> str:
    """Returns the bake file of this checkout."""
    return json.dumps(bake(current()), indent=2) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Writes the bake file, or says whether the committed one is right."""
    parser = argparse.ArgumentParser(prog="python -m encoder_node.targets", description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the file is not up to date")
    options = parser.parse_args(arguments)
    text = rendered()
    if not options.check:
        BAKE_FILE.write_text(text)
    elif not BAKE_FILE.exists() or BAKE_FILE.read_text() != text:
        print(f"{BAKE_FILE.relative_to(ROOT)} is not what the catalogue says: run `make generate`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
