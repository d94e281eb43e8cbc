"""What things are called in the cluster: labels, annotations, and the names of children.

A model's name has at most 40 characters, so that every name below fits in the 63 of a label value.
"""

from __future__ import annotations

from typing import NamedTuple

from encoder_operator.revisions.hashing import Json

GROUP = "encoders.dev"
VERSION = "v1alpha1"
KIND = "EncoderModel"
PLURAL = "encodermodels"
MAX_MODEL_NAME = 40
MODEL_NAME = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_TOO_LONG = (
    f"metadata.name must have at most {MAX_MODEL_NAME} characters: the names of Jobs and revisions are made from it"
)
INVALID_NAME = (
    "metadata.name must start with a letter and hold only lower-case letters, digits and '-': it names the Service"
)

MODEL = f"{GROUP}/model"
COMPONENT = f"{GROUP}/component"
REVISION = f"{GROUP}/revision"
INPUTS = f"{GROUP}/inputs"
CLAIM = f"{GROUP}/claim"
TRUST_REMOTE_CODE = f"{GROUP}/trust-remote-code"
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "encoder-operator"

# the pod condition that is the readiness gate
GATE = f"{GROUP}/parity"

# written by people: a new value asks for another try, or for today's defaults
RETRY = f"{GROUP}/retry"
UPDATE = f"{GROUP}/update"

# written by the operator on its own children
ATTEMPT = f"{GROUP}/attempt"
BINDING = f"{GROUP}/binding"
CLAIM_UID = f"{GROUP}/claim-uid"
ORIGIN = f"{GROUP}/origin"
STALLED = f"{GROUP}/stalled"
GIVEN_UP = f"{GROUP}/given-up"
THRESHOLDS = f"{GROUP}/thresholds"

# where nothing says which accelerator product a pod has, it is verified by itself
SINGLE_POD = "pod:"

GPU_PRODUCT_LABEL = "nvidia.com/gpu.product"
GPU_RESOURCE = "nvidia.com/gpu"
# MIG slices and shared GPUs are resources of this vendor too
GPU_VENDOR = "nvidia.com/"


class NamespacedName(NamedTuple):
    """An EncoderModel."""

    namespace: str
    name: str


def labels(model: str, component: str, revision: str | None = None) -> dict[str, str]:
    """Return the labels of a child."""
    found = {MODEL: model, COMPONENT: component, MANAGED_BY: MANAGER}
    return found | ({REVISION: revision} if revision else {})


def artifacts_pvc(model: str) -> str:
    """Return the name of the claim that the operator makes for a model."""
    return f"{model}-artifacts"


def prep_job(model: str, key: str) -> str:
    """Return the name of the Job that prepares the artifact ``key``."""
    return f"{model}-{key[:16]}-prep"


def parity_job(model: str, revision: str, attempt: int) -> str:
    """Return the name of one attempt to verify a revision."""
    return f"{model}-{revision}-parity-{attempt}"


def revision(model: str, revision_hash: str) -> str:
    """Return the name of the ControllerRevision that keeps a revision."""
    return f"{model}-{revision_hash}"


def owner_reference(model: str, uid: str) -> Json:
    """Return the owner reference by which the garbage collector removes a child with its model."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "name": model,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
