"""`encoder-operator smoke-test`: create an EncoderModel, wait until it is Ready, and delete it. `helm test` runs this command.

Without a spec, the command sends one valid and one invalid EncoderModel to the API server as a dry run. This shows that
the CustomResourceDefinition is installed, has this version, and validates.
"""

from __future__ import annotations

import asyncio
import sys

from encoder_operator import naming
from encoder_operator.client.client import Client
from encoder_operator.client.errors import ApiServerError
from encoder_operator.revisions.hashing import Json

_PAUSE_SECONDS = 2.0
# marks an EncoderModel as one that a smoke test may change and delete
_LABELS = {naming.MANAGED_BY: "encoder-operator-smoke-test"}
VALID_SPEC: Json = {
    "plugin": "sentence_transformer",
    "source": {"huggingFace": {"repo": "example/model", "revision": "0" * 40}},
    "storage": {"create": {"size": "1Gi"}},
    "serving": {"accelerator": "cpu"},
}
INVALID_SPEC: Json = {
    **VALID_SPEC,
    "source": {**VALID_SPEC["source"], "pvc": {"claimName": "example", "path": "model"}},
}


async def run(client: Client, namespace: str, name: str, spec: Json | None, seconds: float) -> int:
    """Test with one EncoderModel, or the API server's validation only.

    Returns:
        0 on success; 1 on failure, or if there is an EncoderModel of this name already, with the reason on standard error.
    """
    try:
        if spec is None:
            return await _check_api_server(client, namespace, name)
        return await _check_model(client, _model(namespace, name, spec), seconds)
    except ApiServerError as error:
        _print(f"error from the API server: {error}")
        return 1


async def _check_api_server(client: Client, namespace: str, name: str) -> int:
    await client.dry_run_apply(_model(namespace, name, VALID_SPEC))
    _print("the API server accepts a valid EncoderModel")
    try:
        await client.dry_run_apply(_model(namespace, name, INVALID_SPEC))
    except ApiServerError as error:
        _print(f"the API server rejects an EncoderModel with two sources: {error}")
        return 0
    _print(
        "the API server accepts an EncoderModel with two sources: the CustomResourceDefinition belongs to another version"
    )
    return 1


async def _check_model(client: Client, model: Json, seconds: float) -> int:
    meta = model["metadata"]
    existing = await client.get(naming.KIND, meta["namespace"], meta["name"])
    if existing is not None and not _LABELS.items() <= (existing["metadata"].get("labels") or {}).items():
        _print(
            f"EncoderModel {meta['name']} exists in namespace {meta['namespace']} and was not created by a smoke test:"
            " choose another name"
        )
        return 1
    applied = await client.apply(model)
    generation = applied["metadata"]["generation"]
    printed = ""
    try:
        async with asyncio.timeout(seconds):
            while True:
                found = await client.get(naming.KIND, meta["namespace"], meta["name"]) or {}
                ready, line = _summary(found, generation)
                if line != printed:
                    _print(line)
                    printed = line
                if ready:
                    return 0
                await asyncio.sleep(_PAUSE_SECONDS)
    except TimeoutError:
        _print(f"not Ready after {seconds:g} s")
        return 1
    finally:
        await client.delete(naming.KIND, meta["namespace"], meta["name"])


def _summary(model: Json, generation: int) -> tuple[bool, str]:
    """Return whether the generation that was applied is Ready, and a line that describes the status."""
    status = model.get("status") or {}
    conditions = {found["type"]: found for found in status.get("conditions", [])}
    ready = conditions.get("Ready", {})
    lines = [
        f"{kind}={found['status']} {found.get('reason', '')}: {found.get('message', '')}".rstrip(": ")
        for kind, found in conditions.items()
        if kind in ("Ready", "Progressing", "Degraded")
    ]
    done = ready.get("status") == "True" and ready.get("observedGeneration", 0) >= generation
    return done, f"{status.get('phase', 'Unseen')}; {'; '.join(lines)}"


def _model(namespace: str, name: str, spec: Json) -> Json:
    return {
        "apiVersion": f"{naming.GROUP}/{naming.VERSION}",
        "kind": naming.KIND,
        "metadata": {"name": name, "namespace": namespace, "labels": _LABELS},
        "spec": spec,
    }


def _print(text: str) -> None:
    sys.stderr.write(f"{text}\n")
