"""`encoder-operator try`: asks a cluster for one EncoderModel, waits until it serves, and takes it away again. `helm test` runs it.

Without an EncoderModel that this cluster could prepare, it asks the API server what it would say to a good one and to a bad one:
that tells whether the definition is there, is this version's, and refuses what it should.
"""

from __future__ import annotations

import asyncio
import sys

from encoder_operator import naming
from encoder_operator.client.client import Cluster
from encoder_operator.client.errors import ClusterError
from encoder_operator.revisions.hashing import Json

_PAUSE_SECONDS = 2.0
GOOD: Json = {
    "plugin": "sentence_transformer",
    "source": {"huggingFace": {"repo": "example/model", "revision": "0" * 40}},
    "storage": {"create": {"size": "1Gi"}},
    "serving": {"accelerator": "cpu"},
}
BAD: Json = {**GOOD, "source": {**GOOD["source"], "pvc": {"claimName": "example", "path": "model"}}}


async def run(cluster: Cluster, namespace: str, name: str, spec: Json | None, seconds: float) -> int:
    """Try one EncoderModel, or the API server alone.

    Returns:
        0 if all is as it should be; 1 if not, with what was seen on standard error.
    """
    try:
        if spec is None:
            return await _ask(cluster, namespace, name)
        return await _serve(cluster, _model(namespace, name, spec), seconds)
    except ClusterError as error:
        _say(f"the API server says: {error}")
        return 1


async def _ask(cluster: Cluster, namespace: str, name: str) -> int:
    await cluster.rehearse(_model(namespace, name, GOOD))
    _say("an EncoderModel would be accepted")
    try:
        await cluster.rehearse(_model(namespace, name, BAD))
    except ClusterError as error:
        _say(f"one with two sources would be refused: {error}")
        return 0
    _say("one with two sources would be accepted too: the CustomResourceDefinition is not this version's")
    return 1


async def _serve(cluster: Cluster, model: Json, seconds: float) -> int:
    meta = model["metadata"]
    applied = await cluster.apply(model)
    generation = applied["metadata"]["generation"]
    told = ""
    try:
        async with asyncio.timeout(seconds):
            while True:
                found = await cluster.get(naming.KIND, meta["namespace"], meta["name"]) or {}
                ready, now = _state(found, generation)
                if now != told:
                    _say(now)
                    told = now
                if ready:
                    return 0
                await asyncio.sleep(_PAUSE_SECONDS)
    except TimeoutError:
        _say(f"not Ready after {seconds:g} s")
        return 1
    finally:
        await cluster.delete(naming.KIND, meta["namespace"], meta["name"])


def _state(model: Json, generation: int) -> tuple[bool, str]:
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


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
