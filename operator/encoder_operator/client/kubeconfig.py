"""Find the API server and its credentials."""

from __future__ import annotations

from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError

from encoder_operator.client.errors import NotConfigured


def load() -> SingleConfig | None:
    """Return the configuration from the pod's service account, or from the kubeconfig.

    Raises:
        NotConfigured: There is neither.
    """
    try:
        return KubeConfig.from_env().get()
    except ConfigError as error:
        raise NotConfigured(
            f"no access to a cluster: {error}; set KUBECONFIG to a kubeconfig file, or run the command in a pod"
        ) from error
