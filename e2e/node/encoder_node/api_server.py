"""The few requests that this package itself sends to the API server: is it ready, what is there, put this there.

Written on the standard library, so that a cluster can be made before anything is installed. Tests of the project use
the official client.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
from pathlib import Path
from typing import Any

from encoder_node.errors import NodeError

FIELD_MANAGER = "encoder-node"
PLURALS = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "ConfigMap": "configmaps",
    "Deployment": "deployments",
    "PersistentVolume": "persistentvolumes",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
    "StorageClass": "storageclasses",
}


def path_of(manifest: dict[str, Any]) -> str:
    """Returns the path of an object in the API.

    Raises:
        NodeError: It is of a kind that this module has no plural of.
    """
    version, kind, metadata = manifest["apiVersion"], manifest["kind"], manifest["metadata"]
    if kind not in PLURALS:
        raise NodeError(f"no plural is known for kind {kind}; known are {', '.join(PLURALS)}")
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    scope = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    return f"{root}{scope}/{PLURALS[kind]}/{metadata['name']}"


class ApiServer:
    """A connection to the API server as the administrator."""

    def __init__(self, kubeconfig: Path) -> None:
        text = kubeconfig.read_text()
        self._host = _field(text, "server").removeprefix("https://")
        self._context = ssl.create_default_context(cadata=_decoded(text, "certificate-authority-data").decode())
        # the standard library reads a client certificate from files only
        pair = kubeconfig.with_suffix(".pem")
        pair.touch(mode=0o600)
        pair.write_bytes(_decoded(text, "client-certificate-data") + _decoded(text, "client-key-data"))
        self._context.load_cert_chain(pair)
        self._connection: http.client.HTTPSConnection | None = None

    def ready(self) -> bool:
        """Whether the API server says that it is ready."""
        try:
            return self._request("GET", "/readyz")[0] == 200
        except NodeError:
            return False

    def get(self, path: str) -> dict[str, Any] | None:
        """Returns an object, None if there is none.

        Raises:
            NodeError: The API server can't be reached or answers with an error.
        """
        status, body = self._request("GET", path)
        if status == 404:
            return None
        return self._object(status, body, path)

    def apply(self, manifest: dict[str, Any]) -> None:
        """Puts an object there, or brings it to this state.

        Raises:
            NodeError: The API server can't be reached or refuses it.
        """
        path = path_of(manifest)
        query = f"?fieldManager={FIELD_MANAGER}&force=true"
        status, body = self._request("PATCH", path + query, manifest, "application/apply-patch+yaml")
        self._object(status, body, path)

    def merge(self, path: str, patch: dict[str, Any]) -> None:
        """Changes some fields of an object; None removes one.

        Raises:
            NodeError: The API server can't be reached or refuses it.
        """
        status, body = self._request("PATCH", path, patch, "application/merge-patch+json")
        self._object(status, body, path)

    def close(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @staticmethod
    def _object(status: int, body: bytes, path: str) -> dict[str, Any]:
        if status >= 300:
            raise NodeError(f"the API server answered {status} for {path}: {body.decode(errors='replace')[:500]}")
        answer: dict[str, Any] = json.loads(body)
        return answer

    def _request(
        self, method: str, path: str, body: dict[str, Any] | None = None, content_type: str = ""
    ) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = http.client.HTTPSConnection(self._host, context=self._context, timeout=10)
        content = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": content_type}
        try:
            self._connection.request(method, path, content, headers)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise NodeError(f"the API server at {self._host} can't be reached: {error}") from error


def _field(kubeconfig: str, name: str) -> str:
    found = re.search(rf"^\s*{name}: (\S+)$", kubeconfig, re.MULTILINE)
    if found is None:
        raise NodeError(f"the kubeconfig has no {name}")
    return found[1]


def _decoded(kubeconfig: str, name: str) -> bytes:
    return base64.b64decode(_field(kubeconfig, name))
