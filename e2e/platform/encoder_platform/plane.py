"""The API-only control plane with our chart on it, as `helm install` would put it there, and no pod of it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from encoder_node import control_plane
from encoder_node.control_plane import ControlPlane
from encoder_node.waiting import wait_for
from encoder_platform import manifests
from encoder_platform.install import CHART, OPERATOR_NAMESPACE
from encoder_platform.kube import Kube

CRD = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")


@dataclass(frozen=True)
class Plane:
    """A control plane that is ready for EncoderModels.

    Attributes:
        control: its processes.
        kube: its API.
    """

    control: ControlPlane
    kube: Kube


@contextmanager
def running(folder: Path, *, controllers: bool = True, values: tuple[str, ...] = ()) -> Iterator[Plane]:
    """Run a control plane with the chart on it while the block runs.

    Args:
        folder: for its data, certificates and logs; stays.
        controllers: whether a controller manager runs too.
        values: the chart's values, as `helm --set` takes them.
    """
    with control_plane.running(folder, controllers=controllers) as control:
        kube = Kube(control.kubeconfig, control.kubectl)
        apply_chart(kube, *values)
        yield Plane(control, kube)


def apply_chart(kube: Kube, *values: str) -> None:
    """Apply what `helm template` renders: the CRD, the RBAC and the admission policy are the real ones."""
    kube.apply(manifests.namespace(OPERATOR_NAMESPACE))
    options = [part for value in ("localImages=true", *values) for part in ("--set", value)]
    command = ["template", "encoder-operator", str(CHART), "--namespace", OPERATOR_NAMESPACE, "--no-hooks", *options]
    helm = kube.kubectl.with_name("helm")
    rendered = subprocess.run([str(helm), *command], capture_output=True, text=True, timeout=60)
    if rendered.returncode:
        raise RuntimeError(f"helm template failed: {rendered.stderr.strip()}")
    kube.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=rendered.stdout)
    wait_for("the EncoderModel API", lambda: established(kube), seconds=30)


def established(kube: Kube, definition: str = "encodermodels.encoders.dev") -> bool:
    """Whether the API server serves what a CustomResourceDefinition defines: EncoderModels, where none is named."""
    found = kube.get(CRD, definition)
    conditions = ((found or {}).get("status") or {}).get("conditions") or []
    if found is None or not any(entry["type"] == "Established" and entry["status"] == "True" for entry in conditions):
        return False
    # it says so a moment before clients can discover it
    spec = found["spec"]
    version = next(entry["name"] for entry in spec["versions"] if entry["served"])
    return spec["names"]["plural"] in kube.run("get", "--raw", f"/apis/{spec['group']}/{version}", check=False)
