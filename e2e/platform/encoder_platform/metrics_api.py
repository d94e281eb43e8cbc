"""An external metrics API, as an adapter for Prometheus would serve it, with one metric whose value a test sets."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from encoder_node.waiting import wait_for
from encoder_platform.kube import Kube, condition

GROUP, VERSION, NAMESPACE = "external.metrics.k8s.io", "v1beta1", "default"
API_SERVICE = ("apiregistration.k8s.io/v1", "APIService")


class Metric:
    """One number.

    Attributes:
        name: what autoscalers call it.
        value: what they are told, in all namespaces.
    """

    def __init__(self, name: str) -> None:
        self.name, self.value = name, 0


@contextmanager
def serving(kube: Kube, name: str, certificate: Path, key: Path) -> Iterator[Metric]:
    """Serve a metric on loopback, registered with an API server that runs there too, while the block runs.

    Args:
        kube: the API server's.
        name: the metric's.
        certificate: any: the API server is told not to look at it.
        key: the certificate's.
    """
    metric = Metric(name)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(metric))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    registration = f"{VERSION}.{GROUP}"
    try:
        _register(kube, registration, server.server_port)
        wait_for("the metrics API", lambda: _available(kube, registration), seconds=60)
        yield metric
    finally:
        kube.delete(API_SERVICE, registration)
        server.shutdown()
        server.server_close()
        thread.join(10)


def _register(kube: Kube, registration: str, port: int) -> None:
    # an API server sends requests for a Service of this type to the name itself
    service = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
    meta = {"name": "metrics-of-a-test", "namespace": NAMESPACE}
    spec = {
        "group": GROUP,
        "version": VERSION,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "insecureSkipTLSVerify": True,
        "service": {**meta, "port": port},
    }
    kube.apply(
        {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": service},
        {"apiVersion": API_SERVICE[0], "kind": API_SERVICE[1], "metadata": {"name": registration}, "spec": spec},
    )


def _available(kube: Kube, registration: str) -> bool:
    return bool(condition(kube.get(API_SERVICE, registration), "Available").get("status") == "True")


def _handler(metric: Metric) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0].strip("/").split("/")
            if path == ["apis", GROUP, VERSION]:
                self._say(_resources(metric))
            elif path[:4] == ["apis", GROUP, VERSION, "namespaces"] and path[-1] == metric.name:
                self._say(_values(metric))
            else:
                self.send_error(404)

        def _say(self, body: object) -> None:
            content = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _resources(metric: Metric) -> object:
    resource = {"name": metric.name, "singularName": "", "namespaced": True, "verbs": ["get"]}
    resources = [{**resource, "kind": "ExternalMetricValueList"}]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{VERSION}", "resources": resources}


def _values(metric: Metric) -> object:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    item = {"metricName": metric.name, "metricLabels": {}, "timestamp": now, "value": str(metric.value)}
    return {"kind": "ExternalMetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}, "items": [item]}
