"""Requests from inside the cluster, sent by a client pod: one with curl, or a stream of them while something else happens."""

import json
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from encoder_platform.kube import Kube

STOP_FILE = "/tmp/stop"
READS = 5


@dataclass(frozen=True)
class Answer:
    """What a client pod got: the HTTP status and the body, read as JSON where it is."""

    status: int
    body: Any


def wait_open(kube: Kube, namespace: str, url: str, *, seconds: int = 30) -> None:
    """Wait until a connection to a Service opens from the client pod.

    A node's kube-proxy learns of a ready pod a moment after the API server does, and refuses connections to a Service until then.
    """
    kube.run(
        *("-n", namespace, "exec", "client", "--", "curl", "-sS", "-o", "/dev/null"),
        *("--retry", str(seconds), "--retry-connrefused", "--retry-delay", "1", "--retry-max-time", str(seconds), url),
        seconds=seconds + 10,
    )


def post(kube: Kube, namespace: str, url: str, body: object, *, seconds: float = 60) -> Answer:
    """POST a body (JSON, or a str as it stands) from the namespace's client pod."""
    text = body if isinstance(body, str) else json.dumps(body)
    output = kube.run(
        *("-n", namespace, "exec", "-i", "client", "--"),
        *("curl", "-sS", "-m", str(seconds), "-w", r"\n%{http_code}", "-H", "Content-Type: application/json"),
        *("--data-binary", "@-", url),
        stdin=text,
        seconds=seconds + 10,
    )
    content, status = output.rsplit("\n", 1)
    try:
        return Answer(int(status), json.loads(content))
    except json.JSONDecodeError:
        return Answer(int(status), content)


def post_many(kube: Kube, namespace: str, url: str, bodies: list[object], *, clients: int = 1) -> list[Answer]:
    """POST several bodies from the client pod, `clients` at a time; the answers come in the order of the bodies."""
    script = files("encoder_platform").joinpath("batch_client.py").read_text()
    path = f"/tmp/answers-{uuid.uuid4().hex}.json"
    kube.run(
        *("-n", namespace, "exec", "-i", "client", "--", "python3", "-c", script, url, str(clients), path),
        stdin=json.dumps(bodies),
        seconds=300,
    )
    return [Answer(a["status"], a["body"]) for a in read_list(kube, namespace, path)]


def read_list(kube: Kube, namespace: str, path: str) -> list[Any]:
    """Return the list in a JSON file of the client pod.

    Beside busy processes kubectl ends with status 0 before it has printed all that a command wrote; of a list the end is missing then.
    """
    for _ in range(READS):
        with suppress(json.JSONDecodeError):
            found: list[Any] = json.loads(kube.run("-n", namespace, "exec", "client", "--", "cat", path))
            return found
    raise RuntimeError(f"kubectl printed {path} of the client pod {READS} times without its end")


@dataclass
class Traffic:
    """What a stream of requests came to, known when it has ended."""

    sent: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def traffic(kube: Kube, namespace: str, url: str, *, clients: int = 2, seconds: float = 600) -> Iterator[Traffic]:
    """Post all the time while the block runs; the numbers are in the yielded object after it."""
    script = files("encoder_platform").joinpath("poster.py").read_text()
    command = [str(kube.kubectl), "-n", namespace, "exec", "-i", "client", "--"]
    arguments = ["python3", "-u", "-c", script, url, STOP_FILE, str(seconds), str(clients)]
    result = Traffic()
    process = subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=kube.environment()
    )
    assert process.stdout is not None
    try:
        if process.stdout.readline().strip() != "posting":
            raise RuntimeError(f"the stream of requests did not start: {process.communicate(timeout=30)[1]}")
        yield result
    finally:
        kube.run("-n", namespace, "exec", "client", "--", "touch", STOP_FILE)
        output, errors = process.communicate(timeout=60)
    if process.returncode:
        raise RuntimeError(f"the stream of requests ended with {process.returncode}: {errors}")
    outcome = json.loads(output)
    result.sent, result.failures = outcome["sent"], outcome["failures"]
