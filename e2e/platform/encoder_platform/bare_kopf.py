"""The least that an operator on Kopf can be: it touches every EncoderModel. The yardstick beside which ours is measured.

usage: python -m encoder_platform.bare_kopf MARK  (KUBECONFIG names the cluster)
"""

import asyncio
import sys
from typing import Any

# not in the image of an operator either, and Kopf imports it where it is installed
sys.modules["kubernetes"] = None  # type: ignore[assignment]

import kopf  # noqa: E402


def main() -> None:
    """Annotate every EncoderModel with its generation and the mark, until ended."""
    registry = kopf.OperatorRegistry()
    mark = sys.argv[1]

    @kopf.on.login(registry=registry)
    def login(**fields: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_kubeconfig(**fields)

    @kopf.on.event("encoders.dev", "v1alpha1", "encodermodels", registry=registry)
    async def touch(meta: Any, patch: Any, **_: Any) -> None:
        seen = f"{mark}-{meta['generation']}"
        if meta.get("annotations", {}).get("bare-kopf/seen") != seen:
            patch.metadata.annotations["bare-kopf/seen"] = seen

    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    asyncio.run(kopf.operator(registry=registry, settings=settings, clusterwide=True, standalone=True))


if __name__ == "__main__":
    main()
