"""Find the API server and its credentials."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from lightkube.config.kubeconfig import DEFAULT_KUBECONFIG, KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError

from encoder_operator.client.errors import NotConfigured
from encoder_operator.revisions.hashing import Json


def load() -> SingleConfig | None:
    """Return the configuration from the pod's service account, or from the kubeconfig.

    Raises:
        NotConfigured: There is neither, or the kubeconfig is invalid.
    """
    try:
        return _read().get()
    except ConfigError as error:
        raise NotConfigured(
            f"no access to a cluster: {error}; set KUBECONFIG to a kubeconfig file, or run the command in a pod"
        ) from error
    # the parser of lightkube does not check what it reads: what is missing or of another type fails where it is used
    except (OSError, UnicodeDecodeError, yaml.YAMLError, LookupError, TypeError, AttributeError) as error:
        raise NotConfigured(_one_line("no access to a cluster: invalid kubeconfig", error)) from error


def _read() -> KubeConfig:
    try:
        return KubeConfig.from_service_account()
    except ConfigError:
        paths = [path for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    return _merge(paths) if len(paths) > 1 else KubeConfig.from_file(paths[0] if paths else DEFAULT_KUBECONFIG)


def _merge(paths: list[str]) -> KubeConfig:
    """Return what several files hold together, as kubectl does: of two entries of a name the first counts, and a file may be missing."""
    files = [file for file in (Path(path).expanduser() for path in paths) if file.is_file()]
    if not files:
        raise ConfigError(f"Configuration files {', '.join(paths)} not found")
    found: dict[str, dict[str, Json]] = {"clusters": {}, "contexts": {}, "users": {}}
    current = None
    for file in files:
        content = yaml.safe_load(file.read_text()) or {}
        current = current or content.get("current-context")
        for kind, entries in found.items():
            for entry in content.get(kind) or []:
                entries.setdefault(entry["name"], _with_absolute_paths(entry, file.parent))
    return KubeConfig.from_dict(
        {"current-context": current, **{kind: list(entries.values()) for kind, entries in found.items()}}
    )


def _with_absolute_paths(entry: Json, folder: Path) -> Json:
    return {
        key: {name: str(folder / found) if _names_a_file(name) else found for name, found in value.items()}
        if isinstance(value, dict)
        else value
        for key, value in entry.items()
    }


def _names_a_file(field: str) -> bool:
    """Return whether a field of a cluster or user is the path of a certificate, key or token; `…-data` has its content."""
    return field == "tokenFile" or (field.startswith(("certificate-", "client-")) and not field.endswith("-data"))


@contextmanager
def certificates_read() -> Iterator[None]:
    """Report certificates of the configuration that cannot be read.

    Raises:
        NotConfigured: A file is missing, or is not a certificate.
    """
    try:
        yield
    except (OSError, ConfigError, ValueError) as error:
        what = "no access to a cluster: a certificate or key cannot be read; check the kubeconfig"
        raise NotConfigured(_one_line(what, error)) from error


def _one_line(what: str, error: Exception) -> str:
    path = os.environ.get("KUBECONFIG", DEFAULT_KUBECONFIG)
    return f"{what} {path}: {type(error).__name__}: {' '.join(str(error).split())}"
