"""Find the API server and its credentials."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import yaml
from lightkube.config.kubeconfig import DEFAULT_KUBECONFIG, KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError

from encoder_operator.client.errors import NotConfigured


def load() -> SingleConfig | None:
    """Return the configuration from the pod's service account, or from the kubeconfig.

    Raises:
        NotConfigured: There is neither, or the kubeconfig is invalid.
    """
    try:
        return KubeConfig.from_env().get()
    except ConfigError as error:
        raise NotConfigured(
            f"no access to a cluster: {error}; set KUBECONFIG to a kubeconfig file, or run the command in a pod"
        ) from error
    # the parser of lightkube does not check what it reads: what is missing or of another type fails where it is used
    except (OSError, UnicodeDecodeError, yaml.YAMLError, LookupError, TypeError, AttributeError) as error:
        raise NotConfigured(_one_line("no access to a cluster: invalid kubeconfig", error)) from error


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
