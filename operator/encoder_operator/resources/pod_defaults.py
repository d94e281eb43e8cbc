"""What every pod of ours has in common: the restricted profile of the pod security standards, and a scratch folder."""

from __future__ import annotations

from typing import Any

from encoder_operator.api.v1alpha1 import EnvVar, Resources
from encoder_operator.revisions.hashing import Json

# the uid and gid of every image of ours, and the group of the volume's files
USER = 10001


def pod_context(*, volume_group: bool = True) -> Json:
    """Return the pod's security context."""
    found: Json = {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    # OnRootMismatch: a volume of many files is not walked at every start
    return found | ({"fsGroup": USER, "fsGroupChangePolicy": "OnRootMismatch"} if volume_group else {})


def container_context() -> Json:
    """Return the container's security context."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def pod_fields() -> Json:
    """Return the fields of a pod's spec that keep the cluster and the pod apart."""
    # service links would put VLLM_PORT into the environment next to a Service called "vllm"
    return {"automountServiceAccountToken": False, "enableServiceLinks": False, "securityContext": pod_context()}


def environment(own: dict[str, str], further: list[EnvVar]) -> list[Json]:
    """Return our variables, then the model's, as a container has them."""
    return [{"name": name, "value": value} for name, value in own.items()] + [
        {"name": variable.name, "value": variable.value} for variable in further
    ]


def resources(found: Resources) -> dict[str, Any]:
    """Return a container's resources."""
    return {key: value for key, value in found.model_dump(mode="json").items() if value}


def join_arguments(*found: str | list[str] | None) -> list[str]:
    """Join arguments, leaving out what is None."""
    flat: list[str] = []
    for entry in found:
        if isinstance(entry, list):
            flat += entry
        elif entry is not None:
            flat.append(entry)
    return flat


def option_arguments(name: str, value: object) -> list[str]:
    """Return ``[name, value]``, or nothing where there is no value."""
    return [] if value is None else [name, str(value)]
