"""The administrator of a namespace tries to have an engine taken for verified: `docs/security.md` names the attacks.

The tenant has the admin role and, beyond it, rights that an administrator of the cluster may have added: ControllerRevisions, the
status of pods and Jobs, and ephemeral containers.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from encoder_node.waiting import wait_for
from encoder_operator import naming
from encoder_platform import chart, forgery
from encoder_platform.bulk import Body, Bulk, connected, path_of
from encoder_platform.forgery import Attempt
from encoder_platform.kube import DEPLOYMENT, JOB, POD, REVISION, Kube, condition, is_true
from encoder_platform.operator_process import NAME, NAMESPACE, OperatorProcess
from encoder_platform.plane import Plane
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn, never

TENANT, GROUPS = "tenant", ("system:authenticated",)
PAGE = chart.ROOT / "docs" / "security.md"
MORE = (
    ("create,update,patch,delete", "controllerrevisions.apps"),
    ("update,patch", "pods/status"),
    ("update,patch", "jobs.batch/status"),
    ("update,patch", "pods/ephemeralcontainers"),
    ("create,update,patch,delete", "podtemplates"),
)
# a policy's refusal, or one of the API server's own: fields that are immutable, requests that are no exec
POLICIES = re.compile(
    r"belong to an EncoderModel|belongs to a prep or parity Job|is the readiness gate|only kubelets and the controllers"
)
IMMUTABLE = re.compile(r"immutable|may not change fields|Forbidden: updates|forbidden: updates|field is immutable")


def grant(kube: Kube, namespace: str) -> None:
    kube.run("-n", namespace, "create", "rolebinding", "admin", "--clusterrole=admin", f"--user={TENANT}")
    for number, (verbs, resource) in enumerate(MORE):
        kube.run("-n", namespace, "create", "role", f"more-{number}", f"--verb={verbs}", f"--resource={resource}")
        kube.run(
            "-n", namespace, "create", "rolebinding", f"more-{number}", f"--role=more-{number}", f"--user={TENANT}"
        )


async def allowed(tenant: Bulk, namespace: str) -> set[str]:
    """Return the resources that the tenant may create, as `plural.group`."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    found = await tenant.send("POST", "apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review)
    return {
        f"{resource}.{group}".rstrip(".")
        for rule in found["status"]["resourceRules"]
        if {"create", "*"} & set(rule["verbs"])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if "/" not in resource and not resource.startswith("self")
    }


async def outcome(tenant: Bulk, attempt: Attempt) -> tuple[Attempt, int, str]:
    query = {"dryRun": "All"} if attempt.dry_run else {"command": "sh"}
    status, answer = await tenant.answer(attempt.method, attempt.path, attempt.body, attempt.content, **query)
    return attempt, status, str(answer.get("message"))


async def attack(plane: Plane, attempts: Iterable[Attempt]) -> list[tuple[Attempt, int, str]]:
    async with connected(plane.control.kubeconfig, user=TENANT, groups=GROUPS) as tenant:
        return await tenant.every(outcome(tenant, attempt) for attempt in attempts)


def refused(status: int, message: str) -> bool:
    return (status == 403 and bool(POLICIES.search(message))) or (status == 422 and bool(IMMUTABLE.search(message)))


def documented() -> set[str]:
    return set(re.findall(r"^\| \*\*(.+?)\*\* \|", PAGE.read_text(), re.MULTILINE))


def test_no_request_of_a_tenant_makes_or_changes_what_a_verdict_rests_on(
    plane: Plane, scene: Scene, stand_in: StandIn, operator: OperatorProcess, tmp_path: Path
) -> None:
    kube, stand_in.parity = scene.kube, never
    grant(kube, scene.name)
    scene.apply_model(rollout={"minReadySeconds": 0})
    scene.wait_condition("Verified", "ParityRunning", seconds=60)
    wait_for(
        "the parity pod running",
        lambda: [p for p in scene.pods(component="parity") if p["status"]["phase"] == "Running"],
        seconds=90,
    )
    for kind in forgery.WORKLOADS:
        kube.apply(forgery.manifest(kind, scene.name))
    live = {**scene.model(), "apiVersion": "encoders.dev/v1alpha1", "kind": naming.KIND}
    owners = [forgery.owner(live, controller=controller) for controller in (True, False)]
    pods = [pod for component in ("prep", "parity", "serving") for pod in scene.pods(component=component)]
    assert {pod["metadata"]["labels"][naming.COMPONENT] for pod in pods} == {"prep", "parity", "serving"}
    running = [pod for pod in pods if pod["metadata"]["labels"][naming.COMPONENT] != "serving"]
    ready(plane, scene)
    attempts = [
        *forgery.creations(scene.name, owners),
        *forgery.adoptions(scene.name, owners),
        *forgery.changes(children(scene)),
        *forgery.reports(pods),
        *forgery.entries(running),
    ]
    found = asyncio.run(attack(plane, attempts))
    record = tmp_path / "tried.txt"
    lines = [f"{status} {attempt.attack}: {attempt.what}" for attempt, status, _ in found]
    record.write_text("\n".join(lines) + "\n")
    print(f"{len(found)} attempts, listed in {record}: {dict(Counter(attempt.attack for attempt in attempts))}")
    assert [(a.what, status, message[:300]) for a, status, message in found if not refused(status, message)] == []
    # every label, annotation and kind was tried
    tried = "\n".join(lines)
    assert [key for key in forgery.KEYS if key not in tried] == []
    assert [kind for kind in forgery.WORKLOADS if f"create {kind} " not in tried] == []
    assert {attempt.attack for attempt in attempts} <= documented()
    assert condition(scene.model(), "Verified")["reason"] == "ParityRunning"


def children(scene: Scene) -> list[tuple[str, str, Body]]:
    """Return what exists for the model, as plural, version and live object."""
    kinds = {
        "jobs": JOB,
        "pods": POD,
        "deployments": DEPLOYMENT,
        "replicasets": ("apps/v1", "ReplicaSet"),
        "controllerrevisions": REVISION,
    }
    return [
        (plural, kind[0], live | {"kind": kind[1]})
        for plural, kind in kinds.items()
        for live in scene.kube.all(kind, scene.name, f"{naming.MODEL}=minilm")
    ]


def ready(plane: Plane, scene: Scene) -> None:
    """Wait until the role bindings and the policies are in effect: both are read from caches."""
    body = forgery.merged(
        forgery.manifest("ControllerRevision", scene.name), {"metadata": {"labels": {naming.COMPONENT: "x"}}}
    )
    attempt = Attempt("", "", "POST", path_of("apps/v1", "controllerrevisions", scene.name), body)
    wait_for("the policies", lambda: POLICIES.search(asyncio.run(attack(plane, [attempt]))[0][2]), seconds=60)


def test_every_kind_that_a_tenant_may_create_is_tried_or_named_as_passive(plane: Plane, scene: Scene) -> None:
    grant(scene.kube, scene.name)

    async def kinds() -> set[str]:
        async with connected(plane.control.kubeconfig, user=TENANT, groups=GROUPS) as tenant:
            return await allowed(tenant, scene.name)

    tried = {
        f"{plural}.{version.partition('/')[0]}" if "/" in version else plural
        for version, plural, *_ in forgery.WORKLOADS.values()
    }
    found: set[str] = set()

    def known() -> bool:
        found.update(asyncio.run(kinds()))
        return "controllerrevisions.apps" in found

    wait_for("the roles", known, seconds=90)
    # the extensions group is what old clusters called these
    assert {kind for kind in found if not kind.endswith(".extensions")} - tried - forgery.PASSIVE == set()


def test_objects_of_other_teams_are_not_evaluated_whatever_they_hold(plane: Plane, scene: Scene) -> None:
    grant(scene.kube, scene.name)
    ready(plane, scene)
    # thousands of keys: the policies count what evaluation costs, and refuse what costs too much
    annotations = {f"a{number}": "" for number in range(15000)}
    labels = {f"l{number}": "" for number in range(5000)}
    body = forgery.merged(
        forgery.manifest("Deployment", scene.name), {"metadata": {"annotations": annotations, "labels": labels}}
    )
    collection = path_of("apps/v1", "deployments", scene.name)
    create = Attempt("", "create", "POST", collection, body, dry_run=False)
    change = Attempt("", "change", "PATCH", f"{collection}/tenant", {"metadata": {"labels": {"b": "c"}}}, forgery.MERGE)
    for request in (create, change):
        # a busy API server may need more time for so many keys than it gives a request
        for _ in range(6):
            _, status, message = asyncio.run(attack(plane, [request]))[0]
            if status != 504:
                break
        assert status < 300, (request.what, status, message[:500])


def test_a_spec_cannot_replace_the_image_of_the_parity_job(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    stand_in.parity = never
    containers = [{"name": name, "image": "forged:1"} for name in ("parity", "prepare")]
    # an image of the tenant's own is compared like any other: the reference is in the artifact, the comparison in the operator's image
    serving = {
        "podTemplate": {"spec": {"containers": containers, "initContainers": [{"name": "early", "image": "forged:1"}]}}
    }
    scene.apply_model(image="forged:1", serving=serving, rollout={"minReadySeconds": 0})
    scene.wait_condition("Verified", "ParityRunning", seconds=60)
    (job,) = scene.jobs("parity")
    spec = job["spec"]["template"]["spec"]
    assert [container["name"] for container in spec["containers"]] == ["parity"]
    assert spec["containers"][0]["image"].startswith("encoder-operator/operator:")
    assert "initContainers" not in spec
    # the containers that were added report nothing
    (pod,) = scene.pods()
    assert not is_true(pod, naming.GATE)


@pytest.mark.parametrize(
    ("resource", "subresource"), [("serviceaccounts", "token"), ("serviceaccounts", ""), ("pods", "exec")]
)
def test_a_tenant_cannot_become_the_operator(scene: Scene, resource: str, subresource: str) -> None:
    grant(scene.kube, scene.name)
    verb = "create" if subresource else "impersonate"

    def may(namespace: str) -> bool:
        options = ["-n", namespace, "auth", "can-i", verb, f"{resource}/{NAME}", f"--subresource={subresource}"]
        return scene.kube.run(*options, f"--as={TENANT}", check=False).splitlines()[:1] == ["yes"]

    # in a namespace of their own, administrators may use every service account: the operator's namespace must not be one
    wait_for("the roles", lambda: may(scene.name), seconds=90)
    assert not may(NAMESPACE)
