"""`encoder-operator try`: asks a cluster for one EncoderModel, waits until it serves, and takes it away again. `helm test` runs it.

Without an EncoderModel that this cluster could prepare, it asks the API server what it would say to a good one and to a bad one:
that tells whether the definition is there, is this version's, and refuses what it should.
"""

from __future__ import annotations

import asyncio
import sys

from encoder_operator import naming
from encoder_operator.client.client import Client
from encoder_operator.client.errors import ApiServerError
from encoder_operator.revisions.hashing import Json

_PAUSE_SECONDS = 2.0
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
    """Try one EncoderModel, or the API server alone.

    Returns:
        0 if all is as it should be; 1 if not, with what was seen on standard error.
    """
    try:
        if spec is None:
            return await _check_api_server(client, namespace, name)
        return await _check_model(client, _model(namespace, name, spec), seconds)
    except ApiServerError as error:
        _print(f"the API server says: {error}")
        return 1


async def _check_api_server(client: Client, namespace: str, name: str) -> int:
    await client.dry_run_apply(_model(namespace, name, VALID_SPEC))
    _print("an EncoderModel would be accepted")
    try:
        await client.dry_run_apply(_model(namespace, name, INVALID_SPEC))
    except ApiServerError as error:
        _print(f"one with two sources would be refused: {error}")
        return 0
    _print("one with two sources would be accepted too: the CustomResourceDefinition is not this version's")
    return 1


async def _check_model(client: Client, model: Json, seconds: float) -> int:
    meta = model["metadata"]
    applied = await client.apply(model)
    generation = applied["metadata"]["generation"]
    told = ""
    try:
        async with asyncio.timeout(seconds):
            while True:
                found = await client.get(naming.KIND, meta["namespace"], meta["name"]) or {}
                ready, now = _summary(found, generation)
                if now != told:
                    _print(now)
                    told = now
                if ready:
                    return 0
                await asyncio.sleep(_PAUSE_SECONDS)
    except TimeoutError:
        _print(f"not Ready after {seconds:g} s")
        return 1
    finally:
        await client.delete(naming.KIND, meta["namespace"], meta["name"])


def _summary(model: Json, generation: int) -> tuple[bool, str]:
    """Return whether a model is Ready as it was asked for, and what there is to say about it."""
    status = model.get("status") or {}
    conditions = {found["type"]: found for found in status.get("conditions", [])}
    ready = conditions.get("Ready", {})
    said = [
        f"{kind}={found['status']} {found.get('reason', '')}: {found.get('message', '')}".rstrip(": ")
        for kind, found in conditions.items()
        if kind in ("Ready", "Progressing", "Degraded")
    ]
    done = ready.get("status") == "True" and ready.get("observedGeneration", 0) >= generation
    return done, f"{status.get('phase', 'Unseen')}; {'; '.join(said)}"


def _model(namespace: str, name: str, spec: Json) -> Json:
    return {
        "apiVersion": f"{naming.GROUP}/{naming.VERSION}",
        "kind": naming.KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def _print(text: str) -> None:
    sys.stderr.write(f"{text}\n")
