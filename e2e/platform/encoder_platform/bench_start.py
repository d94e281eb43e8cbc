"""apply -> Ready with the artifact cached, over the start of the bare engine on the same node, measured in one run.

The bare engine is a Pod with the model's own finished template, without the readiness gate and without an operator.
"""

import time
from datetime import datetime
from functools import partial

from encoder_node.waiting import wait_for
from encoder_platform import install, manifests
from encoder_platform.kube import JOB, MODELS, POD, REVISION, Body, Kind, Kube, condition, is_true

NAMESPACE, NAME, ROUNDS = "bench-start", "minilm", 3


def run() -> None:
    """Alternate bare starts and applied models; print each phase and the medians."""
    platform = install.bring_up()
    kube = platform.kube
    kube.apply(manifests.namespace(NAMESPACE), manifests.claim("artifacts", NAMESPACE))
    kube.apply(manifests.encoder_model(NAME, NAMESPACE, revision=platform.hub_revision))
    wait_for("the first Ready", lambda: is_true(kube.get(MODELS, NAME, NAMESPACE), "Ready"), seconds=600)
    template = _template(kube)
    bare, applied = [], []
    try:
        for _ in range(ROUNDS):
            _remove(kube)
            bare.append(_bare_start(kube, template))
            applied.append(_applied(kube, platform.hub_revision))
    finally:
        kube.delete(("v1", "Namespace"), NAMESPACE)
    _print(bare, applied)


def _template(kube: Kube) -> Body:
    revisions = kube.all(REVISION, NAMESPACE, "encoders.dev/component=revision")
    found: Body = revisions[0]["data"]["template"]
    return found


def _remove(kube: Kube) -> None:
    kube.delete(MODELS, NAME, NAMESPACE)
    for kind in (POD, JOB):
        gone = partial(_none_left, kube, kind)
        wait_for(f"no {kind[1]}", gone, seconds=120)


def _none_left(kube: Kube, kind: Kind) -> bool:
    return not kube.all(kind, NAMESPACE, f"encoders.dev/model={NAME}")


def _reached(kube: Kube, name: str) -> bool:
    return is_true(kube.get(MODELS, NAME, NAMESPACE), name)


def _bare_start(kube: Kube, template: Body) -> float:
    # the same clock as for the model: the API server's own stamps have whole seconds
    begun = time.time()
    spec = {key: value for key, value in template["spec"].items() if key != "readinessGates"}
    kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bare", "namespace": NAMESPACE}, "spec": spec})
    wait_for("the bare engine", lambda: _ready(kube, "bare"), seconds=300, every=0.05)
    took = time.time() - begun
    kube.delete(POD, "bare", NAMESPACE)
    wait_for("the bare engine gone", lambda: kube.get(POD, "bare", NAMESPACE) is None, seconds=90)
    return took


def _ready(kube: Kube, name: str) -> Body | None:
    pod = kube.get(POD, name, NAMESPACE)
    return pod if is_true(pod, "Ready") else None


def _applied(kube: Kube, revision: str) -> dict[str, float]:
    begun = time.time()
    kube.apply(manifests.encoder_model(NAME, NAMESPACE, revision=revision))
    marks = {}
    for name in ("ArtifactReady", "Verified", "Ready"):
        wait_for(name, partial(_reached, kube, name), seconds=300, every=0.05)
        marks[name] = time.time() - begun
    pod = kube.all(POD, NAMESPACE, f"encoders.dev/model={NAME},encoders.dev/component=serving")[0]
    started = pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    marks["engine start in the pod"] = _seconds(started, condition(pod, "ContainersReady")["lastTransitionTime"])
    return marks


def _seconds(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()


def _print(bare: list[float], applied: list[dict[str, float]]) -> None:
    print(f"\n{ROUNDS} rounds, alternating; seconds, median [min … max]")
    print(f"  {'bare engine: apply -> Ready':42s} {_spread(bare)}")
    for name in applied[0]:
        print(f"  {'apply -> ' + name if name[0].isupper() else name:42s} {_spread([a[name] for a in applied])}")
    ready = sorted(a["Ready"] for a in applied)[ROUNDS // 2]
    engine = sorted(bare)[ROUNDS // 2]
    print(f"  apply -> Ready is the bare start + {ready - engine:.1f} s ({ready / engine:.2f}x)")


def _spread(values: list[float]) -> str:
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:5.1f} [{ordered[0]:.1f} … {ordered[-1]:.1f}]"
