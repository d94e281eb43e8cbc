"""Puts checkpoints that were built here onto the tests' hub in the cluster, which forgets them when it ends."""

import base64
import json
import tempfile
from pathlib import Path

from encoder_platform import manifests
from encoder_platform.kube import Kube


def publish(kube: Kube, repository: str, folder: Path) -> str:
    """Publish a folder as `organisation/name`; return its revision, which depends on nothing but its content."""
    files = {
        path.relative_to(folder).as_posix(): base64.b64encode(path.read_bytes()).decode("ascii")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    proxy = f"/api/v1/namespaces/{manifests.HUB_NAMESPACE}/services/hub:8080/proxy"
    with tempfile.NamedTemporaryFile("w", suffix=".json") as body:
        json.dump(files, body)
        body.flush()
        answer = kube.run("create", "--raw", f"{proxy}/_repositories/{repository}", "-f", body.name)
    revision: str = json.loads(answer)["v1"]
    return revision
