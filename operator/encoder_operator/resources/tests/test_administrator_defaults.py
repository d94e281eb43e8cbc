"""What an administrator sets for all EncoderModels: proxy, CA certificates, hub mirror, token, StorageClass, users, workload identity."""

from __future__ import annotations

from typing import Any

import pytest

from encoder_operator.cli import render
from encoder_operator.manager.settings import Defaults, Settings
from encoder_operator.planner import artifact
from encoder_operator.resources import persistent_volume_claim
from encoder_operator.revisions.hashing import Json, canonical_json
from encoder_operator.state import observed
from encoder_operator.status.reasons import Reason
from encoder_operator.tests.harness import SETTINGS, Harness, parsed_model, with_fields
from encoder_operator.validation.errors import NotAccepted

# as the chart passes them
DEFAULTS = Defaults.model_validate_json(
    """{"proxy": {"http": "", "https": "http://proxy:3128", "noProxy": ".svc"}, "storageClassName": "fast",
    "caConfigMap": {"name": "company-ca", "key": "bundle.pem"}, "hubEndpoint": "https://hub.example.org",
    "tokenSecret": {"name": "hub", "key": "password"}}"""
)
CONFIGURED = SETTINGS.model_copy(update={"defaults": DEFAULTS})
HUB = "spec.source.huggingFace"


def prep(settings: Settings, changes: dict[str, Any]) -> Json:
    """Return the pod of the prep Job."""
    found = render.render_children(with_fields(changes), settings)
    jobs = [child for child in found if child["metadata"]["name"].endswith("-prep")]
    spec: Json = jobs[0]["spec"]["template"]["spec"]
    return spec


def variables(pod: Json) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in pod["containers"][0]["env"]}


def test_a_prep_job_has_the_defaults() -> None:
    pod = prep(CONFIGURED, {})
    assert variables(pod).items() >= {
        "HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": ".svc", "HF_ENDPOINT": "https://hub.example.org"
    }.items()  # fmt: skip
    # an empty value would mean a proxy without a name
    assert "HTTP_PROXY" not in variables(pod)
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    # the namespace need not have either
    assert volumes["ca"]["configMap"] == {
        "name": "company-ca", "items": [{"key": "bundle.pem", "path": "ca.crt"}], "optional": True
    }  # fmt: skip
    assert volumes["token"]["projected"]["sources"][0]["secret"]["optional"] is True
    assert "--optional-files" in pod["containers"][0]["args"]


def test_what_a_model_sets_takes_precedence() -> None:
    env = [{"name": "HTTPS_PROXY", "value": "http://other:1"}]
    own = {"caConfigMapRef": {"name": "own"}, "tokenSecretRef": {"name": "own"}, "endpoint": "https://other"}
    pod = prep(CONFIGURED, {"spec.prepare.env": env, **{f"{HUB}.{name}": value for name, value in own.items()}})
    assert [entry for entry in pod["containers"][0]["env"] if entry["name"] == "HTTPS_PROXY"] == env
    assert "company-ca" not in canonical_json(pod)
    assert "--optional-files" not in pod["containers"][0]["args"]


@pytest.mark.parametrize(
    "changes",
    [
        {f"{HUB}.endpoint": "https://elsewhere.example.org"},
        {"spec.prepare.env": [{"name": "HF_ENDPOINT", "value": "https://elsewhere.example.org"}]},
    ],
    ids=["field", "variable"],
)
def test_the_default_token_is_not_sent_to_a_hub_that_a_model_names(changes: dict[str, Any]) -> None:
    pod = prep(CONFIGURED, changes)
    assert "--token-file" not in pod["containers"][0]["args"]
    assert "token" not in {volume["name"] for volume in pod["volumes"]}


async def test_a_new_default_neither_repeats_a_preparation_nor_changes_a_volume() -> None:
    harness = Harness()
    await harness.settle()
    before = harness.fake.version
    harness.operator_settings = CONFIGURED
    harness.reconciler = harness.operator()
    await harness.settle()
    assert harness.fake.version == before
    # an expansion must not request another StorageClass either: it is immutable
    model = parsed_model({"spec.storage": {"create": {"size": "2Gi"}}})
    assert model.spec.storage.create is not None
    live = {
        "metadata": {"name": "minilm-artifacts", "uid": "u"},
        "spec": {"storageClassName": "slow", "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Bound"},
    }
    (grown,) = artifact.volume_expansion(
        model, observed.ObservedState(now=observed._EPOCH, pvc=observed.parse_pvc(live))
    )
    assert grown.manifest["spec"]["storageClassName"] == "slow"  # type: ignore[union-attr]


@pytest.mark.parametrize(("own", "expected"), [(None, "fast"), ("own", "own")])
def test_a_new_volume_has_the_default_storage_class(own: str | None, expected: str) -> None:
    create = {"size": "1Gi"} | ({"storageClassName": own} if own else {})
    model = parsed_model({"spec.storage": {"create": create}})
    assert model.spec.storage.create is not None
    found = persistent_volume_claim.build(
        model, model.spec.storage.create, None, storage_class=DEFAULTS.storage_class_name
    )
    assert found["spec"]["storageClassName"] == expected


def test_a_service_account_must_be_allowed() -> None:
    changes = {"spec.prepare": {"serviceAccountName": "reader"}}
    with pytest.raises(
        NotAccepted, match=r"spec.prepare.serviceAccountName reader.*tenancy.prepServiceAccounts"
    ) as error:
        prep(SETTINGS, changes)
    assert error.value.reason is Reason.NOT_PERMITTED
    pod = prep(SETTINGS.model_copy(update={"prep_service_accounts": ["reader"]}), changes)
    assert pod["serviceAccountName"] == "reader"
    assert pod["automountServiceAccountToken"] is False


def test_a_bucket_is_read_with_the_workload_identity_unless_there_is_a_secret() -> None:
    allowed = SETTINGS.model_copy(update={"prep_service_accounts": ["reader"]})
    bucket: Json = {"s3": {"uri": "s3://models/a"}}
    account = {"spec.prepare": {"serviceAccountName": "reader"}}
    flag = "--ambient-credentials"
    assert flag in prep(allowed, {"spec.source": bucket, **account})["containers"][0]["args"]
    assert flag not in prep(allowed, {"spec.source": bucket})["containers"][0]["args"]
    secret = {"s3": {"uri": "s3://models/a", "credentialsSecretRef": {"name": "keys"}}}
    assert flag not in prep(allowed, {"spec.source": secret, **account})["containers"][0]["args"]


def test_no_pod_names_a_user_where_the_platform_assigns_one() -> None:
    found = canonical_json(render.render_children(with_fields({}), SETTINGS.model_copy(update={"fixed_user": False})))
    assert '"runAsNonRoot":true' in found
    for name in ("runAsUser", "runAsGroup", "fsGroup"):
        assert f'"{name}"' not in found
        assert f'"{name}":10001' in canonical_json(render.render_children(with_fields({}), SETTINGS))
