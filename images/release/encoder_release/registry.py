"""Pushes, attaches and signs: oras, Helm and cosign, built as the cluster's programs are."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encoder_node import extra_programs
from encoder_node.errors import CommandFailedError
from encoder_node.programs import Programs
from encoder_node.settings import load

PUSH_SECONDS = 3600
"""The longest that one push may take: an engine's image has several gigabytes."""


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry that images are pushed to; credentials are Docker's (`~/.docker/config.json`), which `oras login` writes.

    Attributes:
        plain_http: No TLS, for a registry on this machine.
    """

    plain_http: bool = False

    def push_image(self, layout: Path, digest: str, reference: str) -> None:
        """Copy an image from a layout; what the registry has already is not sent.

        Raises:
            CommandFailedError: The registry refused it, or a blob differs from its digest.
        """
        plain = ["--to-plain-http"] if self.plain_http else []
        run(_oras("cp", "--no-tty", *plain, "--from-oci-layout", f"{layout}@{digest}", reference))

    def resolve(self, reference: str) -> str:
        """Return the digest that a tag has in the registry."""
        return run(_oras("resolve", *self._plain(), reference)).strip()

    def attach(self, reference: str, artifact_type: str, name: str, document: Mapping[str, Any]) -> str:
        """Attach a document to an image or a chart as an OCI referrer, and return the digest of its manifest.

        Args:
            reference: The subject, by digest.
            artifact_type: Media type of the document, which is also the artifact's type.
            name: File name of the document.
            document: Its content.
        """
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / name).write_text(json.dumps(document, indent=1, ensure_ascii=False))
            options = ("--no-tty", "--format", "json", "--artifact-type", artifact_type)
            output = run(
                _oras("attach", *options, *self._plain(), reference, f"{name}:{artifact_type}"), folder=Path(folder)
            )
        found: str = json.loads(output)["digest"]
        return found

    def referrers(self, reference: str) -> list[dict[str, Any]]:
        """Return what is attached to an image or a chart: digest and artifact type of each."""
        output = run(_oras("discover", *self._plain(), "--format", "json", reference))
        found = json.loads(output)
        attached: list[dict[str, Any]] = found.get("referrers") or found.get("manifests") or []
        return attached

    def attached(self, repository: str, digest: str) -> dict[str, Any]:
        """Return the document of an attached artifact.

        Args:
            repository: The repository with its registry.
            digest: Digest of the artifact's manifest.
        """
        manifest = json.loads(run(_oras("manifest", "fetch", *self._plain(), f"{repository}@{digest}")))
        blob = manifest["layers"][0]["digest"]
        found: dict[str, Any] = json.loads(
            run(_oras("blob", "fetch", *self._plain(), "--output", "-", f"{repository}@{blob}"))
        )
        return found

    def push_chart(self, package: Path, repository: str) -> str:
        """Push a packaged chart and return the digest of its manifest.

        Args:
            package: The archive that `helm package` made.
            repository: Where charts go, with the registry.
        """
        output = run([str(_helm()), "push", str(package), f"oci://{repository}", *self._plain()], errors_too=True)
        found = re.search(r"^Digest: (sha256:[0-9a-f]{64})$", output, re.MULTILINE)
        if not found:
            raise CommandFailedError(["helm", "push"], 0, output)
        return found[1]

    def sign(self, reference: str, key: str) -> None:
        """Sign an image or a chart by its digest; the password of the key is in COSIGN_PASSWORD."""
        run(_cosign("sign", *self._signing(key), reference))

    def attest(self, reference: str, key: str, kind: str, predicate: Mapping[str, Any]) -> None:
        """Attach a signed statement about an image or a chart.

        Args:
            reference: The subject, by digest.
            key: Private key.
            kind: cosign's name of the predicate's type, for example `spdxjson`.
            predicate: The content.
        """
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(predicate, file)
            file.flush()
            run(_cosign("attest", *self._signing(key), "--type", kind, "--predicate", file.name, reference))

    def verify(self, reference: str, key: str, *, kind: str = "") -> None:
        """Verify a signature, or a signed statement where `kind` names its type.

        Args:
            reference: The subject, by digest.
            key: Public key.
            kind: cosign's name of the predicate's type; empty for a signature.
        """
        http = ["--allow-http-registry"] if self.plain_http else []
        command = ["verify-attestation", "--type", kind] if kind else ["verify"]
        run(_cosign(*command, "--key", key, "--insecure-ignore-tlog", *http, reference))

    def _plain(self) -> list[str]:
        return ["--plain-http"] if self.plain_http else []

    def _signing(self, key: str) -> list[str]:
        # a key needs no public log of signatures, and a private registry's names do not belong into one
        http = ["--allow-http-registry"] if self.plain_http else []
        return ["--key", key, "--yes", "--tlog-upload=false", "--use-signing-config=false", *http]


def package_chart(folder: Path, target: Path) -> Path:
    """Package a chart and return the archive."""
    run([str(_helm()), "package", str(folder), "--destination", str(target)])
    (found,) = target.glob("*.tgz")
    return found


def run(command: Sequence[str], *, folder: Path | None = None, errors_too: bool = False) -> str:
    """Run a program and return what it prints.

    Raises:
        CommandFailedError: It failed; its message is part of the error.
    """
    done = subprocess.run(
        list(command), cwd=folder, capture_output=True, text=True, check=False, timeout=PUSH_SECONDS, env=os.environ
    )
    if done.returncode:
        raise CommandFailedError(command, done.returncode, done.stderr or done.stdout)
    return done.stdout + (done.stderr if errors_too else "")


def _oras(*arguments: str) -> list[str]:
    return [str(extra_programs.program("oras")), *arguments]


def _cosign(*arguments: str) -> list[str]:
    return [str(extra_programs.program("cosign")), *arguments]


def _helm() -> Path:
    found = Programs(load())
    if not found.built:
        found.build()
    return found.folder / "helm"
