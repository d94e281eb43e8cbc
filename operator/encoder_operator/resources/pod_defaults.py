"""Fields that all pods of the operator share: the restricted Pod Security Standard and scratch space."""

from __future__ import annotations

from typing import Any

from encoder_operator.api.v1alpha1 import EnvVar, Resources
from encoder_operator.revisions.hashing import Json

# uid and gid of the images, and group of the volume's files
USER = 10001


def pod_context(*, fixed_user: bool) -> Json:
    """Return the security context of a pod. Without a fixed user, the platform's admission sets user and groups."""
    user = {"runAsUser": USER, "runAsGroup": USER} if fixed_user else {}
    group = {"fsGroup": USER} if fixed_user else {}
    # OnRootMismatch avoids changing the group of every file at every start
    return {
        "runAsNonRoot": True,
        **user,
        "seccompProfile": {"type": "RuntimeDefault"},
        **group,
        "fsGroupChangePolicy": "OnRootMismatch",
    }


def container_context() -> Json:
    """Return the security context of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def pod_fields(*, fixed_user: bool) -> Json:
    """Return the fields of a pod spec that isolate the pod from the cluster."""
    # a Service named vllm would set VLLM_PORT in the environment
    context = pod_context(fixed_user=fixed_user)
    return {"automountServiceAccountToken": False, "enableServiceLinks": False, "securityContext": context}


def environment(own: dict[str, str], further: list[EnvVar]) -> list[Json]:
    """Return the operator's variables followed by the model's."""
    return [{"name": name, "value": value} for name, value in own.items()] + [
        {"name": variable.name, "value": variable.value} for variable in further
    ]


def resources(found: Resources) -> dict[str, Any]:
    """Return the resources of a container."""
    return {key: value for key, value in found.model_dump(mode="json").items() if value}


def join_arguments(*found: str | list[str] | None) -> list[str]:
    """Join arguments and skip None."""
    flat: list[str] = []
    for entry in found:
        if isinstance(entry, list):
            flat += entry
        elif entry is not None:
            flat.append(entry)
    return flat


def option_arguments(name: str, value: object) -> list[str]:
    """Return `[name, value]`, or an empty list if there is no value."""
    return [] if value is None else [name, str(value)]
