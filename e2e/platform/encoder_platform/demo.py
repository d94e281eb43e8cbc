"""`make demo`: a cluster, the operator, one EncoderModel and its answer, printed as it happens."""

import json
import shlex
import time
from itertools import combinations, pairwise

from encoder_node import progress
from encoder_platform import client, install, manifests
from encoder_platform.kube import MODELS, Body, Kube, condition, is_true
from encoder_platform.waiting import wait_for

NAMESPACE, NAME = "demo", "minilm"
MILESTONES = ("Accepted", "ArtifactReady", "Verified", "Ready")
TEXTS = [
    "A man is eating.",
    "Someone has a meal.",
    "A cheetah chases its prey.",
    "A big cat runs after an antelope.",
    "The central bank raised its interest rate.",
    "Borrowing became more expensive this month.",
]


def run() -> None:
    """Bring everything up, print the answer, and say how to go on; the cluster stays."""
    platform = install.bring_up()
    kube, clock = platform.kube, progress.Clock()
    _apply(kube, platform.hub_revision, platform.images["e2e"])
    progress.say("model", f"{NAME:8s} {' → '.join(_milestones(kube))}", clock.seconds())
    progress.say("parity", _parity_line(kube.get(MODELS, NAME, NAMESPACE)))
    _ask(kube)
    print(
        f"\n  use it:  export KUBECONFIG=$(make -s kubeconfig) PATH={platform.kube.kubectl.parent}:$PATH; kubectl -n {NAMESPACE} get em"
        "\n  end it:  make demo-down"
    )


def _apply(kube: Kube, revision: str, client_image: str) -> None:
    kube.apply(manifests.namespace(NAMESPACE))
    kube.apply(manifests.claim("artifacts", NAMESPACE), manifests.encoder_model(NAME, NAMESPACE, revision=revision))
    if kube.get(("v1", "Pod"), "client", NAMESPACE) is None:
        kube.apply(manifests.client_pod(client_image, NAMESPACE))


def _milestones(kube: Kube) -> list[str]:
    """Wait for each condition in its turn; returns their names with the seconds that each took."""
    started, reached = time.monotonic(), []
    for name in MILESTONES:

        def true(name: str = name) -> bool:
            return is_true(kube.get(MODELS, NAME, NAMESPACE), name)

        try:
            wait_for(f"{NAME}: {name}", true, seconds=600)
        except AssertionError as late:
            seen = condition(kube.get(MODELS, NAME, NAMESPACE), name)
            raise SystemExit(f"{late}\n{json.dumps(seen, indent=1)}") from late
        reached.append((name, time.monotonic() - started))
    marks = [("", 0.0), *reached]
    return [
        f"{after[0]} {after[1] - before[1]:.0f} s" if after[1] - before[1] >= 1 else after[0]
        for before, after in pairwise(marks)
    ]


def _parity_line(model: Body | None) -> str:
    parity = (model or {})["status"]["parity"]
    worst = {m["name"]: m["value"] for m in parity["metrics"]}
    return (
        f"{parity['cases']} cases alone, batched, concurrent, shuffled: "
        f"worst cosine {worst['cosine']}, worst |Δ| {worst['max_abs_error']}"
    )


def _ask(kube: Kube) -> None:
    wait_for("the client pod", lambda: is_true(kube.get(("v1", "Pod"), "client", NAMESPACE), "Ready"), seconds=60)
    url, body = f"http://{NAME}.{NAMESPACE}.svc/pooling", {"model": NAME, "data": {"texts": TEXTS}}
    print("  from a client pod:")
    print(f"  $ curl {url} -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}")
    answer = client.post(kube, NAMESPACE, url, body)
    if answer.status != 200:
        raise SystemExit(f"the answer was {answer.status}: {answer.body}")
    data = answer.body["data"]
    for vector in data["embeddings"]:
        print(f"    [{', '.join(f'{x:+.4f}' for x in vector[:6])}, … {data['dimensions']} numbers]")
    print(f"    {data['usage']['prompt_tokens']} tokens; the three most similar pairs:")
    pairs = combinations(zip(TEXTS, data["embeddings"], strict=True), 2)
    scored = [(sum(x * y for x, y in zip(a[1], b[1], strict=True)), a[0], b[0]) for a, b in pairs]
    for cosine, one, other in sorted(scored, reverse=True)[:3]:
        print(f"    {cosine:.4f}  {one}  |  {other}")
