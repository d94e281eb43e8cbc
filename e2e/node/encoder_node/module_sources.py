"""Files out of other projects' sources, by way of Go's module proxy: what they say of their own API.

Nothing is built from them. Go verifies what it downloads against its checksum database; the sum is pinned here besides.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from encoder_node.errors import CommandFailedError, NodeError


@dataclass(frozen=True, slots=True)
class Source:
    """One version of a module, and the sum that its files must have."""

    module: str
    version: str
    sum: str


OLDEST_KUBERNETES = Source("k8s.io/kubernetes", "v1.33.13", "h1:bmH31xUdSzeA5vk0wZAK9MZp11mdLuzUSeKk0qN3hPQ=")
"""The oldest Kubernetes that the chart installs on. The newest is the one that the node is built from."""
PROMETHEUS_OPERATOR = Source(
    "github.com/prometheus-operator/prometheus-operator", "v0.85.0", "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s="
)
"""Its CustomResourceDefinitions are in example/prometheus-operator-crd."""
GATEWAY_API = Source("sigs.k8s.io/gateway-api", "v1.4.0", "h1:ZwlNM6zOHq0h3WUX2gfByPs2yAEsy/EenYJB78jpQfQ=")
"""Its CustomResourceDefinitions are in config/crd/standard."""

INFERENCE_EXTENSION = Source(
    "sigs.k8s.io/gateway-api-inference-extension", "v1.5.0", "h1:w9Awt60cmI1vM7Y6N81h8wDCBP0WkmxpdI7GKY0v070="
)
"""Its CustomResourceDefinitions are in config/crd/bases."""

KEDA = Source("github.com/kedacore/keda/v2", "v2.21.0", "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=")
"""Its CustomResourceDefinitions are in config/crd/bases."""

KUEUE = Source("sigs.k8s.io/kueue", "v0.17.0", "h1:7hzb38M4eKGzYW+CFv2s1L+swzzacUCHOCXxZmAV90I=")
"""Its CustomResourceDefinitions are in config/components/crd/bases."""


def folder(source: Source) -> Path:
    """Returns the folder with a module's files, downloaded if they are not here yet.

    Raises:
        CommandFailedError: It can't be downloaded.
        NodeError: It is not what it was when it was pinned.
    """
    command = ["go", "mod", "download", "-json", f"{source.module}@{source.version}"]
    answer = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, timeout=600)
    if answer.returncode != 0:
        raise CommandFailedError(command, answer.returncode, answer.stdout + answer.stderr)
    found = json.loads(answer.stdout)
    if found["Sum"] != source.sum:
        raise NodeError(f"{source.module} {source.version} has the sum {found['Sum']}, not {source.sum}")
    return Path(found["Dir"])
