"""The external metrics API with one number in it, as an adapter beside Prometheus would serve it: enough for a real autoscaler."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from encoder_platform import manifests
from encoder_platform.kube import Body, Kube

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
NAMESPACE = "metrics"


@dataclass
class Number:
    """What every metric is at the moment; a test changes it."""

    value: int = 0


def answer(path: str, number: Number) -> Body:
    """Return what the API says under a path: its own description, or the number for the requested metric."""
    parts = path.partition("?")[0].strip("/").split("/")
    if len(parts) < 6:
        resource = {
            "name": "*",
            "singularName": "",
            "namespaced": True,
            "kind": "ExternalMetricValueList",
            "verbs": ["get"],
        }
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{GROUP}/{VERSION}",
            "resources": [resource],
        }
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    item = {"metricName": parts[5], "metricLabels": {}, "timestamp": now, "value": str(number.value)}
    return {"kind": "ExternalMetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}, "items": [item]}


@contextmanager
def running(kube: Kube, certificate: Path, key: Path) -> Iterator[Number]:
    """Serve the API on this machine, and register it with the API server, while the block runs."""
    number = Number()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answer(self.path, number)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        kube.apply(manifests.namespace(NAMESPACE), *_registration(server.server_port))
        yield number
    finally:
        kube.delete(("apiregistration.k8s.io/v1", "APIService"), f"{VERSION}.{GROUP}")
        server.shutdown()
        server.server_close()
        thread.join(10)


def _registration(port: int) -> list[Body]:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "adapter", "namespace": NAMESPACE},
        # no pod could serve it: there is no kubelet
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
    }
    api = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{VERSION}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "version": VERSION,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {"name": "adapter", "namespace": NAMESPACE, "port": port},
        },
    }
    return [service, api]
