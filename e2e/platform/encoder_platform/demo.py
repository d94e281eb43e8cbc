"""`make demo [MODEL=PLUGIN]`: a cluster, the operator, one EncoderModel and its answer, printed as it happens.

Without MODEL it is MiniLM as it is published; with the name of a plugin, a small checkpoint of random weights in that
plugin's own format, built here and put on the tests' hub: the whole way is shown, and what it finds means nothing.
"""

import json
import os
import shlex
import tempfile
import time
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from encoder_node import progress
from encoder_node.errors import WaitTimeoutError
from encoder_node.waiting import wait_for
from encoder_platform import client, install, manifests
from encoder_platform.kube import MODELS, Body, Kube, condition, is_true
from encoder_platform.publish import publish

NAMESPACE, MINILM = "demo", "minilm"
MILESTONES = ("Accepted", "ArtifactReady", "Verified", "Ready")
TEXTS = [
    "A man is eating.",
    "Someone has a meal.",
    "A cheetah chases its prey.",
    "A big cat runs after an antelope.",
    "The central bank raised its interest rate.",
    "Borrowing became more expensive this month.",
]


@dataclass(frozen=True)
class Choice:
    """An item of the menu.

    Attributes:
        name: What the EncoderModel is called.
        data: The data of the request that is shown.
        spec: What the EncoderModel says, beside what all of them say.
    """

    name: str
    data: dict[str, Any]
    revision: str
    spec: dict[str, Any] = field(default_factory=dict)


def run() -> None:
    """Bring everything up, print the answer, and say how to go on; the cluster stays."""
    wanted = os.environ.get("MODEL") or MINILM
    known = menu()
    if wanted not in known:
        raise SystemExit(f"no MODEL is called {wanted!r}; there is: {', '.join(known)}")
    plugin = "sentence_transformer" if wanted == MINILM else wanted
    # the images of other plugins are most of what a first run would build
    platform = install.bring_up([plugin])
    kube, clock = platform.kube, progress.Clock()
    choice = _choice(wanted, platform)
    _apply(kube, choice, platform.images["e2e"])
    progress.say("model", f"{choice.name:8s} {' → '.join(_milestones(kube, choice.name))}", clock.seconds())
    progress.say("parity", _parity_line(kube.get(MODELS, choice.name, NAMESPACE)))
    _request(kube, choice)
    print(
        f"\n  use it:  export KUBECONFIG=$(make -s kubeconfig) PATH={platform.kube.kubectl.parent}:$PATH; kubectl -n {NAMESPACE} get em"
        "\n  end it:  make demo-down"
    )


def menu() -> list[str]:
    """Return what MODEL may be."""
    from encoder_plugins import catalog

    return [MINILM, *catalog.plugins()]


def _choice(wanted: str, platform: install.Platform) -> Choice:
    if wanted in (MINILM, "sentence_transformer"):
        return Choice(MINILM, {"texts": TEXTS}, platform.hub_revision)
    from encoder_checkpoints import samples
    from encoder_plugins import catalog

    sample, clock = samples.of(catalog.get(wanted)), progress.Clock()
    name = wanted.replace("_", "-")
    with tempfile.TemporaryDirectory() as folder:
        revision = publish(platform.kube, f"demo/{name}", sample.build(Path(folder) / name))
    progress.say("hub", f"demo/{name} built and published", clock.seconds())
    return Choice(name, dict(sample.demo), revision, {"plugin": wanted, "repository": f"demo/{name}"})


def _apply(kube: Kube, choice: Choice, client_image: str) -> None:
    kube.apply(manifests.namespace(NAMESPACE))
    model = manifests.encoder_model(choice.name, NAMESPACE, revision=choice.revision, **choice.spec)
    kube.apply(manifests.claim("artifacts", NAMESPACE), model)
    if kube.get(("v1", "Pod"), "client", NAMESPACE) is None:
        kube.apply(manifests.client_pod(client_image, NAMESPACE))


def _milestones(kube: Kube, model: str) -> list[str]:
    """Wait for each condition in its turn; returns their names with the seconds that each took."""
    started, reached = time.monotonic(), []
    for name in MILESTONES:

        def true(name: str = name) -> bool:
            return is_true(kube.get(MODELS, model, NAMESPACE), name)

        try:
            wait_for(f"{model}: {name}", true, seconds=600)
        except WaitTimeoutError as late:
            seen = condition(kube.get(MODELS, model, NAMESPACE), name)
            raise SystemExit(f"{late}\n{json.dumps(seen, indent=1)}") from late
        reached.append((name, time.monotonic() - started))
    marks = [("", 0.0), *reached]
    return [
        f"{after[0]} {after[1] - before[1]:.0f} s" if after[1] - before[1] >= 1 else after[0]
        for before, after in pairwise(marks)
    ]


def _parity_line(model: Body | None) -> str:
    parity = (model or {})["status"]["parity"]
    worst = ", ".join(f"{metric['name']} {metric['value']}" for metric in parity["metrics"])
    return f"{parity['cases']} cases alone, batched, concurrent, shuffled: worst {worst}"


def _request(kube: Kube, choice: Choice) -> None:
    wait_for("the client pod", lambda: is_true(kube.get(("v1", "Pod"), "client", NAMESPACE), "Ready"), seconds=60)
    url, body = f"http://{choice.name}.{NAMESPACE}.svc/pooling", {"model": choice.name, "data": choice.data}
    print("  from a client pod:")
    print(f"  $ curl {url} -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}")
    client.wait_open(kube, NAMESPACE, url.replace("/pooling", "/health"))
    answer = client.post(kube, NAMESPACE, url, body)
    if answer.status != 200:
        raise SystemExit(f"the answer was {answer.status}: {answer.body}")
    if "embeddings" in answer.body["data"]:
        _show_vectors(answer.body["data"], choice.data["texts"])
    else:
        print("\n".join(f"    {line}" for line in _rows(answer.body["data"])))


def _rows(data: dict[str, Any]) -> list[str]:
    """Word an answer: a line for each element of its lists, and one for the rest."""
    rows = [
        json.dumps(element, ensure_ascii=False)
        for value in data.values()
        if isinstance(value, list)
        for element in value
    ]
    rest = {name: value for name, value in data.items() if not isinstance(value, list)}
    return [*rows, json.dumps(rest, ensure_ascii=False)]


def _show_vectors(data: dict[str, Any], texts: list[str]) -> None:
    for vector in data["embeddings"]:
        print(f"    [{', '.join(f'{x:+.4f}' for x in vector[:6])}, … {data['dimensions']} numbers]")
    print(f"    {data['usage']['prompt_tokens']} tokens; the three most similar pairs:")
    pairs = combinations(zip(texts, data["embeddings"], strict=True), 2)
    scored = [(sum(x * y for x, y in zip(a[1], b[1], strict=True)), a[0], b[0]) for a, b in pairs]
    for cosine, one, other in sorted(scored, reverse=True)[:3]:
        print(f"    {cosine:.4f}  {one}  |  {other}")
