"""The chart of a release: the checkout's chart with the registry, the digests, and where it comes from. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from encoder_release.plan import ReleaseError
from encoder_release.provenance import Source

ANNOTATION = "artifacthub.io"


def values(text: str, registry: str, digests: Mapping[str, str]) -> str:
    """Return values.yaml with the registry and the digest of each image; the comments stay.

    Args:
        text: The checkout's values.yaml.
        registry: What `imageRegistry` becomes.
        digests: Manifest digests by target, for example `engine-colbert-cpu`.

    Raises:
        ReleaseError: values.yaml has another shape than expected.
    """
    text = _replaced(text, r'^imageRegistry: ""$', f"imageRegistry: {registry}")
    engines: dict[str, dict[str, Any]] = {"cpu": {}, "cuda": {}}
    preps: dict[str, Any] = {}
    for name, digest in sorted(digests.items()):
        if name == "operator":
            # the first digest of the file is the operator's
            text = _replaced(text, r'^  digest: ""$', f"  digest: {digest}")
        elif name.startswith("prep-"):
            preps[name.removeprefix("prep-")] = {"digest": digest}
        else:
            plugin, _, kind = name.removeprefix("engine-").rpartition("-")
            engines[kind][plugin] = {"digest": digest}
    for kind, found in engines.items():
        text = _replaced(text, rf"^  {kind}: {{}}$", _mapping(kind, found, "  "))
    text = _replaced(text, r"^preps: {}$", _mapping("preps", preps, ""))
    return text


def _mapping(name: str, found: Mapping[str, Any], indent: str) -> str:
    if not found:
        return f"{indent}{name}: {{}}"
    lines = yaml.safe_dump({name: dict(found)}, sort_keys=True, width=1000).splitlines()
    return "\n".join(indent + line for line in lines)


def _replaced(text: str, pattern: str, value: str) -> str:
    changed, count = re.subn(pattern, lambda _: value, text, count=1, flags=re.MULTILINE)
    if not count:
        raise ReleaseError(f"values.yaml has no line that matches {pattern}")
    return changed


def description(text: str, version: str, source: Source, maintainer: str, images: Mapping[str, str]) -> str:
    """Return Chart.yaml of a release.

    Args:
        text: The checkout's Chart.yaml.
        version: Version of the chart and of the images.
        source: Its address becomes `home` and `sources`; without one they are absent.
        maintainer: `NAME <ADDRESS>` or a name; empty for none.
        images: References with digests by target.

    Raises:
        ReleaseError: The maintainer is invalid.
    """
    chart: dict[str, Any] = yaml.safe_load(text)
    chart.update(version=version, appVersion=version)
    if source.url:
        chart.update(home=source.url, sources=[source.url])
    if maintainer:
        chart["maintainers"] = [_maintainer(maintainer)]
    listed = [{"name": name, "image": reference} for name, reference in sorted(images.items())]
    chart["annotations"] = {
        **chart.get("annotations", {}),
        f"{ANNOTATION}/images": yaml.safe_dump(listed, sort_keys=False, width=1000),
        f"{ANNOTATION}/prerelease": str("-" in version).lower(),
        "org.opencontainers.image.revision": source.commit,
    }
    return yaml.safe_dump(chart, sort_keys=False, allow_unicode=True, width=1000)


def _maintainer(text: str) -> dict[str, str]:
    found = re.fullmatch(r"\s*([^<>]+?)\s*(?:<([^<>@\s]+@[^<>\s]+)>)?\s*", text)
    if not found:
        raise ReleaseError(f"MAINTAINER {text!r} is invalid: expected NAME or NAME <ADDRESS>")
    return {"name": found[1], **({"email": found[2]} if found[2] else {})}
