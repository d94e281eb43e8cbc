"""Programs that only some tests need: built on first use, each from a module of its own, or by `python -m encoder_node.extra_programs`.

They are no part of the node's set, so nobody who wants a cluster waits for them, and a new one does not rebuild the others. Their
versions are pinned as the node's are, in `tools/<name>/go.mod`; shared dependencies are at the node's versions, which is why most
of what they need is in Go's cache already.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from encoder_node import prerequisites, programs, progress
from encoder_node.errors import NodeError
from encoder_node.programs import Step
from encoder_node.settings import TOOLS, Settings, load
from encoder_node.waiting import exclusive

_HELM = "helm.sh/helm/v3"
_PROMETHEUS = "github.com/prometheus/prometheus"
_VERSITYGW = "github.com/versity/versitygw"
_TRAEFIK = "github.com/traefik/traefik/v3"
_ACTIONLINT = "github.com/rhysd/actionlint"
_LUA = "github.com/yuin/gopher-lua"
_ORAS = "oras.land/oras"
_COSIGN = "github.com/sigstore/cosign/v3"
_DISTRIBUTION = "github.com/distribution/distribution/v3"
_DEVICE_DRIVER = f"{programs.KUBERNETES}/test/e2e/dra/test-driver"

EXTRAS = {
    "helm3": Step("helm 3", "helm3", (f"{_HELM}/cmd/helm",), _HELM, (f"{_HELM}/internal/version.version",), "helm3"),
    # rules are tested without looking for targets, and without that there is no cloud's client in it
    "promtool": Step(
        "promtool",
        "prometheus",
        (f"{_PROMETHEUS}/cmd/promtool",),
        _PROMETHEUS,
        name="promtool",
        tags=("remove_all_sd",),
    ),
    # the server itself, for the picture of the dashboard; without the pages of its own
    "prometheus": Step(
        "Prometheus",
        "prometheus",
        (f"{_PROMETHEUS}/cmd/prometheus",),
        _PROMETHEUS,
        name="prometheus",
        tags=("remove_all_sd",),
    ),
    "versitygw": Step("versitygw", "versitygw", (f"{_VERSITYGW}/cmd/versitygw",), _VERSITYGW),
    "traefik": Step("Traefik", "traefik", (f"{_TRAEFIK}/cmd/traefik",), _TRAEFIK),
    "dra-test-driver": Step(
        "Kubernetes' driver of devices by claim",
        "dra-test-driver",
        (_DEVICE_DRIVER,),
        programs.KUBERNETES,
        name="dra-test-driver",
    ),
    "actionlint": Step("actionlint", "actionlint", (f"{_ACTIONLINT}/cmd/actionlint",), _ACTIONLINT),
    # the Lua in which Argo CD runs checks of health
    "glua": Step("GopherLua", "glua", (f"{_LUA}/cmd/glua",), _LUA),
    # what `make release` pushes, attaches and signs with, and a registry that its test pushes to
    "oras": Step("oras", "oras", (f"{_ORAS}/cmd/oras",), _ORAS),
    "cosign": Step("cosign", "cosign", (f"{_COSIGN}/cmd/cosign",), _COSIGN),
    "registry": Step(
        "distribution registry",
        "registry",
        (".",),
        _DISTRIBUTION,
        (f"{_DISTRIBUTION}/version.version",),
        name="registry",
    ),
}

# only `make soak` and `make dashboard` run them, and their thousand packages take minutes
SOAK_ONLY = frozenset({"prometheus", "traefik"})


def program(name: str, settings: Settings | None = None) -> Path:
    """Returns one of EXTRAS, built if it is not built yet.

    Raises:
        MissingPrerequisiteError: Go is not here.
        CommandFailedError: The build failed; its log is named.
    """
    settings = settings or load()
    step = EXTRAS[name]
    built = settings.paths.bin / "extra" / f"{name}-{fingerprint(step)}"
    if built.exists():
        return built
    prerequisites.ensure(prerequisites.missing_go(), install=False)
    built.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(built.parent / f"{name}.lock", f"building {name}", seconds=settings.build_seconds):
        if not built.exists():
            _build(step, built, settings)
    return built


def fingerprint(step: Step) -> str:
    """Returns what distinguishes one build of a program from another."""
    digest = hashlib.sha256(repr((step, step.tags, programs.COMPILER_FLAGS)).encode())
    folder = TOOLS / step.module
    for file in (folder / "go.mod", folder / "go.sum", *sorted(folder.glob("*.go"))):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _build(step: Step, built: Path, settings: Settings) -> None:
    clock = progress.Clock()
    folder = TOOLS / step.module
    version = programs.module_versions((folder / "go.mod").read_text())[step.versioned]
    scratch = built.parent / f"{built.name}.linking"
    scratch.mkdir(exist_ok=True)
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}
    log = settings.paths.bin / "log" / f"{step.outputs()[0]}.log"
    programs.execute(programs.go_build(step, scratch, version), folder, log, environment, settings.build_seconds)
    # the linker writes into the file itself: an interrupted one must not pass for a program
    (scratch / step.outputs()[0]).rename(built)
    scratch.rmdir()
    progress.say("tools", f"{step.title} {version}", clock.seconds())


def main() -> int:
    """Builds what `make e2e` needs, so that its tests do not wait for a compiler."""
    try:
        for name in sorted(EXTRAS.keys() - SOAK_ONLY):
            program(name)
    except NodeError as error:
        print(f"encoder_node: {error.explain()}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
