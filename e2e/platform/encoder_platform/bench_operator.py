"""The operator's resident memory: idle, and with 200 suspended EncoderModels; read from the kernel's own account of its container."""

from encoder_platform import install, manifests
from encoder_platform.kube import MODELS, Kube, condition
from encoder_platform.waiting import wait_for

NAMESPACE, MODELS_MADE = "bench-operator", 200


def run() -> None:
    """Print resident memory before and after, in MiB."""
    platform = install.bring_up()
    kube = platform.kube
    with install.operator_stopped(kube):
        pass  # a fresh process: nothing that earlier work left behind is measured
    idle = _resident(kube)
    kube.apply(manifests.namespace(NAMESPACE), manifests.claim("artifacts", NAMESPACE))
    try:
        for number in range(MODELS_MADE):
            body = manifests.encoder_model(f"m{number:03d}", NAMESPACE, revision=platform.hub_revision, suspend=True)
            kube.apply(body)
        wait_for("all accepted", lambda: _accepted(kube) == MODELS_MADE, seconds=300)
        loaded = _resident(kube)
    finally:
        kube.delete(("v1", "Namespace"), NAMESPACE)
    print(f"\n  operator, resident: idle {idle:.1f} MiB; with {MODELS_MADE} suspended EncoderModels {loaded:.1f} MiB")


def _accepted(kube: Kube) -> int:
    return sum(condition(m, "Accepted").get("status") == "True" for m in kube.all(MODELS, NAMESPACE))


def _resident(kube: Kube) -> float:
    status = kube.run(
        "-n", install.OPERATOR_NAMESPACE, "exec", "deploy/encoder-operator", "--", "cat", "/proc/1/status"
    )
    kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    return int(kilobytes) / 1024
