"""What some fields make of the manifests, value by value; the golden files show the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from encoder_operator.cli.render import _placeholder_pod
from encoder_operator.resources import (
    deployment,
    parity_job,
    pod_disruption_budget,
    prep_job,
    scheduling,
    service,
    serving_pod_template,
)
from encoder_operator.revisions.hashing import Json
from encoder_operator.revisions.revision import Artifact, build
from encoder_operator.tests.harness import SETTINGS, parsed_model
from encoder_plugins.__main__ import build_parser

KEY = "k" * 64
GPU: dict[str, Any] = {"spec.serving.accelerator": "nvidia"}
ONE_NODE: dict[str, Any] = {"spec.storage": {"create": {"size": "1Gi"}}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ARTIFACT = Artifact(key=KEY, digest="sha256:d", reference="sha256:r", revision="", bytes=1)


def template(changes: dict[str, Any], *, shared: bool = True) -> Json:
    return serving_pod_template.build(parsed_model(changes), KEY, "sha256:d", shared=shared, settings=SETTINGS)


def engine(changes: dict[str, Any]) -> Json:
    found: Json = template(changes)["spec"]["containers"][0]
    return found


def prep(changes: dict[str, Any], *, shared: bool = True) -> Json:
    found: Json = prep_job.build(parsed_model(changes), KEY, shared=shared, settings=SETTINGS)["spec"]["template"]
    return found


@pytest.mark.parametrize(
    ("changes", "limits"),
    [
        ({}, None),
        (GPU, {"nvidia.com/gpu": "1"}),
        (GPU | {"spec.serving.tensorParallelSize": 4}, {"nvidia.com/gpu": "4"}),
        (GPU | {"spec.serving.resources": {"limits": {"cpu": 2}}}, {"cpu": 2, "nvidia.com/gpu": "1"}),
        (
            GPU | {"spec.serving.resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}},
            {"nvidia.com/mig-1g.10gb": 1},
        ),
        (GPU | {"spec.serving.resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}, None),
    ],
)
def test_the_number_of_gpus_follows(changes: dict[str, Any], limits: Json | None) -> None:
    assert engine(changes)["resources"].get("limits") == limits


def test_the_engine_uses_the_pods_resource_claim() -> None:
    requested = {"name": "gpu", "resourceClaimTemplateName": "t", "request": "r"}
    found = template(GPU | {"spec.serving.resourceClaims": [requested, {"name": "all", "resourceClaimName": "c"}]})
    assert found["spec"]["resourceClaims"] == [
        {"name": "gpu", "resourceClaimTemplateName": "t"},
        {"name": "all", "resourceClaimName": "c"},
    ]
    assert found["spec"]["containers"][0]["resources"]["claims"] == [{"name": "gpu", "request": "r"}, {"name": "all"}]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"spec.serving.apiServerCount": 3}, ["--api-servers", "3"]),
        ({"spec.serving.apiServerCount": 1}, ["--engines", "1", "--api-servers", "1"]),
        (
            {"spec.serving.apiServerCount": 2, "spec.serving.enginesPerAccelerator": 2},
            ["--engines", "2", "--api-servers", "2"],
        ),
        # an engine over several GPUs has them to itself
        (
            GPU | {"spec.serving.tensorParallelSize": 2},
            ["--engines", "1", "--", "--tensor-parallel-size", "2"],
        ),
        (
            GPU | {"spec.serving.quantization": "fp8", "spec.serving.args": ["--seed=1"]},
            ["--", "--quantization", "fp8", "--seed=1"],
        ),
        (GPU | {"spec.serving.loadFormat": "fastsafetensors"}, ["--", "--load-format", "fastsafetensors"]),
        ({"spec.serving.loadFormat": "safetensors"}, ["--", "--load-format", "safetensors"]),
    ],
)
def test_fields_become_vllm_arguments(changes: dict[str, Any], said: list[str]) -> None:
    args = engine(changes)["args"]
    assert args[args.index("--dtype") + 2 :] == said


def test_code_of_a_repository_shows_in_a_label_of_every_pod_that_runs_it() -> None:
    permitting = SETTINGS.model_copy(update={"allow_trust_remote_code": True})
    model = parsed_model({"spec.serving.trustRemoteCode": True}, permitting)
    serving = serving_pod_template.build(model, KEY, "sha256:d", shared=True, settings=permitting)
    job = prep_job.build(model, KEY, shared=True, settings=permitting)["spec"]["template"]
    for found in (serving, job):
        assert found["metadata"]["labels"]["encoders.dev/trust-remote-code"] == "true"
        assert "--trust-remote-code" in found["spec"]["containers"][0]["args"]
    assert "encoders.dev/trust-remote-code" not in template({})["metadata"]["labels"]


def test_with_a_shared_volume_prep_runs_where_its_node_selector_says() -> None:
    changes = {
        "spec.serving.nodeSelector": {"pool": "gpu"},
        "spec.serving.tolerations": [{"key": "gpu", "operator": "Exists"}],
        "spec.prepare": {"nodeSelector": {"pool": "cpu"}, "tolerations": [{"key": "cpu", "operator": "Exists"}]},
    }
    spec = prep(changes)["spec"]
    assert spec["nodeSelector"] == {"pool": "cpu"}
    assert [entry["key"] for entry in spec["tolerations"]] == ["gpu", "cpu"]
    assert "affinity" not in spec


def test_one_volume_on_one_node_keeps_prep_where_serving_may_run() -> None:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}
    changes = ONE_NODE | {
        "spec.serving.accelerator": "nvidia",
        "spec.serving.acceleratorProduct": "NVIDIA-L4",
        "spec.serving.affinity": {"nodeAffinity": {REQUIRED: terms}},
        "spec.prepare": {"nodeSelector": {"disk": "ssd"}},
    }
    spec = prep(changes, shared=False)["spec"]
    assert spec["nodeSelector"] == {"disk": "ssd", "nvidia.com/gpu.product": "NVIDIA-L4"}
    assert spec["affinity"]["nodeAffinity"] == {REQUIRED: terms}


@pytest.mark.parametrize("storage", [{"create": {"size": "1Gi"}}, {"claimName": "artifacts"}])
def test_pods_of_one_volume_on_one_node_find_each_other(storage: Json) -> None:
    """Each pod's term selects all pods that use the volume, itself too: the scheduler lets the first of them go anywhere."""
    model = parsed_model({"spec.storage": storage})
    revision = build(model, ARTIFACT, shared=False, settings=SETTINGS)
    serving = revision.template
    job = prep_job.build(model, KEY, shared=False, settings=SETTINGS)["spec"]["template"]
    parity = parity_job.build(
        model, revision, _placeholder_pod(revision.hash), attempt=1, shared=False, settings=SETTINGS
    )

    def selected(template: Json, by: Json) -> bool:
        (term,) = by["spec"]["affinity"]["podAffinity"][REQUIRED]
        labels = template["metadata"]["labels"]
        return all(labels.get(key) == value for key, value in term["labelSelector"]["matchLabels"].items())

    assert selected(job, job)
    assert selected(serving, job)
    assert selected(parity["spec"]["template"], job)
    assert selected(serving, serving)


def test_pods_of_models_that_share_a_pvc_are_kept_together() -> None:
    own = scheduling.pvc_labels(parsed_model({"spec.storage": {"claimName": "a"}}), shared=False)
    same = scheduling.pvc_labels(
        parsed_model({"spec.storage": {"claimName": "a"}, "metadata.name": "other"}), shared=False
    )
    another = scheduling.pvc_labels(parsed_model({"spec.storage": {"claimName": "b"}}), shared=False)
    assert own == same != another
    assert scheduling.pvc_labels(parsed_model({"spec.storage": {"claimName": "a"}}), shared=True) == {}


def test_a_spread_constraint_selects_the_models_own_pods_by_default() -> None:
    plain = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    chosen = plain | {"topologyKey": "rack", "labelSelector": {"matchLabels": {"app": "x"}}}
    first, second = template({"spec.serving.topologySpreadConstraints": [plain, chosen]})["spec"][
        "topologySpreadConstraints"
    ]
    labels = template({})["metadata"]["labels"]
    assert first["labelSelector"]["matchLabels"].items() <= labels.items()
    assert second["labelSelector"] == {"matchLabels": {"app": "x"}}


@pytest.mark.parametrize(
    ("rollout", "strategy"),
    [
        ({}, {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}),
        ({"strategy": "Recreate"}, {"type": "Recreate"}),
        (
            {"maxSurge": 0, "maxUnavailable": "50%"},
            {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "50%"}},
        ),
    ],
)
def test_the_deployment_has_the_requested_strategy(rollout: Json, strategy: Json) -> None:
    model = parsed_model({"spec.rollout": rollout})
    found = deployment.build(model, build(model, ARTIFACT, shared=True, settings=SETTINGS), 2)["spec"]
    assert found["strategy"] == strategy
    assert found["minReadySeconds"] == 5


@pytest.mark.parametrize(
    ("ip", "host"), [("10.0.0.9", "10.0.0.9"), ("fd00::9", "[fd00::9]"), ("fd00:1:2:3:4:5:6:9", "[fd00:1:2:3:4:5:6:9]")]
)
def test_a_parity_job_reaches_its_pod_by_either_family_of_addresses(ip: str, host: str) -> None:
    model = parsed_model()
    revision = build(model, ARTIFACT, shared=True, settings=SETTINGS)
    pod = replace(_placeholder_pod(revision.hash), ip=ip)
    job = parity_job.build(model, revision, pod, attempt=1, shared=True, settings=SETTINGS)
    assert f"http://{host}:8000" in job["spec"]["template"]["spec"]["containers"][0]["args"]


def test_a_parity_job_keeps_the_limits_of_the_revision_that_it_verifies() -> None:
    limits = {"texts": 64, "body_bytes": 100_000}
    served = parsed_model({"spec.serving.limits": limits, "spec.serving.args": ["--limit", "texts=1"]})
    revision = build(served, ARTIFACT, shared=True, settings=SETTINGS)
    pod = _placeholder_pod(revision.hash)
    # the spec has changed since; the pod is still the one with the limits
    job = parity_job.build(parsed_model(), revision, pod, attempt=1, shared=True, settings=SETTINGS)
    given = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert build_parser("parity").parse_args(given).limit == ["body_bytes=100000", "texts=64"]


def test_a_parity_job_has_the_bounds_of_the_quantization_that_it_verifies() -> None:
    served = parsed_model(GPU | {"spec.serving.quantization": "fp8", "spec.serving.args": ["--seed=1"]})
    for model, quantization in ((served, "fp8"), (parsed_model(GPU), None)):
        revision = build(model, ARTIFACT, shared=True, settings=SETTINGS)
        # the spec may have changed since; the pod is the revision's
        job = parity_job.build(
            parsed_model(), revision, _placeholder_pod(revision.hash), attempt=1, shared=True, settings=SETTINGS
        )
        given = job["spec"]["template"]["spec"]["containers"][0]["args"]
        assert build_parser("parity").parse_args(given).quantization == quantization


def test_a_parity_job_looks_for_the_engine_by_its_name() -> None:
    served = parsed_model(GPU | {"spec.serving.quantization": "fp8", "spec.serving.limits": {"texts": 64}})
    revision = build(served, ARTIFACT, shared=True, settings=SETTINGS)
    spec = revision.template["spec"]
    proxy = {"name": "proxy", "args": ["--limit", "texts=1", "--", "--quantization", "none"]}
    changed = revision.template | {"spec": spec | {"containers": [proxy, *spec["containers"]]}}
    job = parity_job.build(
        parsed_model(),
        replace(revision, template=changed),
        _placeholder_pod(revision.hash),
        attempt=1,
        shared=True,
        settings=SETTINGS,
    )
    parsed = build_parser("parity").parse_args(job["spec"]["template"]["spec"]["containers"][0]["args"])
    assert (parsed.limit, parsed.quantization) == (["texts=64"], "fp8")


def test_a_budget_is_for_pods_that_can_be_replaced_elsewhere() -> None:
    assert pod_disruption_budget.build(parsed_model(), shared=True) is None
    two = parsed_model({"spec.serving.replicas": 2})
    assert pod_disruption_budget.build(two, shared=False) is None
    found = pod_disruption_budget.build(two, shared=True)
    assert found is not None
    assert found["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize(
    ("port", "address"), [(80, "http://minilm.demo.svc/pooling"), (9, "http://minilm.demo.svc:9/pooling")]
)
def test_the_endpoint_names_the_port_where_it_must(port: int, address: str) -> None:
    assert service.endpoint(parsed_model({"spec.network": {"service": {"port": port}}})) == address


def test_the_prep_job_has_the_queue_of_its_model_and_its_pods_have_not() -> None:
    queue = "kueue.x-k8s.io/queue-name"
    model = parsed_model({"metadata.labels": {queue: "encoders", "team": "search"}})
    job = prep_job.build(model, KEY, shared=True, settings=SETTINGS)
    assert job["metadata"]["labels"][queue] == "encoders"
    # further labels are for users' own selectors
    assert "team" not in job["metadata"]["labels"]
    # the queue would count the pods once more
    assert queue not in job["spec"]["template"]["metadata"]["labels"]
    assert queue not in prep_job.build(parsed_model(), KEY, shared=True, settings=SETTINGS)["metadata"]["labels"]


def test_a_preparation_is_tried_again_only_for_what_changes_it() -> None:
    def hash_of(changes: dict[str, Any]) -> str:
        return prep_job.inputs_hash(parsed_model(changes), KEY)

    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}
    hub = "spec.source.huggingFace"
    worth: list[dict[str, Any]] = [
        {},
        {f"{hub}.revision": "2" * 40},
        {f"{hub}.endpoint": "https://hub.example.org"},
        {f"{hub}.caConfigMapRef": {"name": "ca"}},
        {"spec.source.auxiliary": [{"repo": "a/b", "revision": "3" * 40}]},
        {"spec.storage": {"claimName": "mine"}},
        {"spec.prepare.backoffLimit": 1},
        {"spec.prepare.nodeSelector": {"disk": "ssd"}},
        {"spec.prepare.env": [{"name": "A", "value": "b"}]},
        {"spec.serving.nodeSelector": {"pool": "a"}},
        {"spec.serving.affinity": {"nodeAffinity": {REQUIRED: terms}}},
        {"spec.serving.imagePullSecrets": [{"name": "registry"}]},
        {"spec.serving.imagePullSecrets": [{"name": "other"}]},
        GPU | {"spec.serving.acceleratorProduct": "NVIDIA-L4"},
        GPU | {"spec.serving.acceleratorProduct": "NVIDIA-H200"},
    ]
    assert len({hash_of(changes) for changes in worth}) == len(worth)
    assert prep_job.inputs_hash(parsed_model(), "another") != hash_of({})
    sets = [[{"name": "a", "sha256": number * 64, "url": "http://web/a.jsonl"}] for number in "12"]
    linker: dict[str, Any] = {"spec.plugin": "deberta_gliner_linker", "spec.image": "mine:1"}
    images = SETTINGS.images.model_copy(update={"prep": {"deberta_gliner_linker": "prep:1"}})
    settings = SETTINGS.model_copy(update={"images": images})
    found = {
        prep_job.inputs_hash(parsed_model(linker | {"spec.labelSets": labels}, settings), KEY) for labels in ([], *sets)
    }
    assert len(found) == 3
    of_no_effect: list[dict[str, Any]] = [
        {"spec.serving.replicas": 3},
        {"spec.serving.args": ["--seed=1"]},
        # a field of a later version that is set to what it is without being set
        {f"{hub}.allowMutableRevision": False},
        {"spec.prepare.tolerations": []},
    ]
    assert {hash_of(changes) for changes in of_no_effect} == {hash_of({})}
