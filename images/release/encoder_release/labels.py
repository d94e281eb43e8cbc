"""What an image says about itself: the labels that registries, scanners and `docker inspect` show, in its configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from encoder_node import layouts
from encoder_release.build import Built
from encoder_release.plan import Image, Release
from encoder_release.provenance import Source

PREFIX = "org.opencontainers.image"
LICENCE = "Apache-2.0"


def of(image: Image, release: Release, source: Source) -> dict[str, str]:
    """Return the labels of an image; `source` is absent where the checkout has no address."""
    found = {
        "title": image.repository,
        "version": release.version,
        "revision": source.commit,
        "created": source.time,
        "licenses": LICENCE,
        "source": source.url,
    }
    return {f"{PREFIX}.{name}": value for name, value in found.items() if value}


def add(built: Built, release: Release, source: Source) -> Built:
    """Write each image once more with its labels; layers stay what they are.

    Args:
        built: Images in a layout, which gets the new ones beside them.
        release: What they are released as.
        source: What they were built from.
    """
    digests = dict(built.digests)
    for image in release.images:
        entry = _labelled(built.layout, digests[image.target.name], of(image, release, source))
        layouts.add_to_index(built.layout, entry)
        digests[image.target.name] = entry["digest"]
    return Built(built.layout, digests)


def _labelled(layout: Path, digest: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the descriptor of an image, or of an index of several, with labels added."""
    found: dict[str, Any] = json.loads(layouts.blob_path(layout, digest).read_bytes())
    if "manifests" in found:
        found["manifests"] = [entry | _labelled(layout, entry["digest"], labels) for entry in found["manifests"]]
        return {"mediaType": layouts.INDEX, **layouts.put(layout, found)}
    config: dict[str, Any] = json.loads(layouts.blob_path(layout, found["config"]["digest"]).read_bytes())
    config["config"]["Labels"] = {**(config["config"].get("Labels") or {}), **labels}
    found["config"] |= layouts.put(layout, config)
    return {"mediaType": layouts.MANIFEST, **layouts.put(layout, found)}
