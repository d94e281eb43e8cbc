"""Names in the cluster: labels, annotations, and names of children.

The name of an EncoderModel has at most 40 characters, so that the names below fit into the 63 characters of a label
value.
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
NAME_TOO_LONG = f"metadata.name must have at most {MAX_MODEL_NAME} characters, because names of Jobs and revisions are derived from it"
INVALID_NAME = "metadata.name must start with a letter and contain only lower-case letters, digits and '-', because it names the Service"

MODEL = f"{GROUP}/model"
COMPONENT = f"{GROUP}/component"
REVISION = f"{GROUP}/revision"
INPUTS = f"{GROUP}/inputs"
CLAIM = f"{GROUP}/claim"
TRUST_REMOTE_CODE = f"{GROUP}/trust-remote-code"
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "encoder-operator"

# what the API server takes in the objects that a spec's fields become part of; regular expressions of RE2
_DNS_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_LABEL = f"^{_DNS_LABEL}$"
DNS_SUBDOMAIN = rf"^{_DNS_LABEL}(\.{_DNS_LABEL})*$"
LABEL_KEY = rf"^({_DNS_LABEL}(\.{_DNS_LABEL})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?$"
LABEL_VALUE = "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
# the prefix in upper case, too
ANNOTATION_KEY = LABEL_KEY.replace("a-z0-9", "A-Za-z0-9")
MAX_DNS_LABEL = 63
# of an image, which the kubelet parses: registry, path, tag, digest
_REGISTRY = r"([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(:[0-9]+)?"
_IMAGE_PATH = "[a-z0-9]+(([.]|__?|-+)[a-z0-9]+)*"
IMAGE = (
    rf"^({_REGISTRY}/)?{_IMAGE_PATH}(/{_IMAGE_PATH})*(:[A-Za-z0-9_][-A-Za-z0-9_.]{{0,127}})?"
    r"(@[A-Za-z][-A-Za-z0-9_+.]*:[0-9a-fA-F]{32,})?$"
)
NOT_AN_IMAGE = (
    "it is not the name of an image, such as registry.example.com/team/engine:1.0: lower-case letters, without https://"
)
MAX_LABEL_KEY = 317
MAX_LABEL_VALUE = 63

# condition type of the readiness gate
GATE = f"{GROUP}/parity"
# condition type that records on which platform the gate was opened
PLATFORM = f"{GROUP}/platform"

# set by users: a new value requests a retry, or the current defaults
RETRY = f"{GROUP}/retry"
UPDATE = f"{GROUP}/update"

# a label of Kueue, which users set on what a queue is to admit
QUEUE = "kueue.x-k8s.io/queue-name"

# set by the operator on its own children
ATTEMPT = f"{GROUP}/attempt"
BINDING = f"{GROUP}/binding"
CLAIM_UID = f"{GROUP}/claim-uid"
ORIGIN = f"{GROUP}/origin"
STALLED = f"{GROUP}/stalled"
GIVEN_UP = f"{GROUP}/given-up"
THRESHOLDS = f"{GROUP}/thresholds"

# prefix of a verdict's product if the accelerator product is unknown, so that each pod is verified separately
SINGLE_POD = "pod:"

GPU_PRODUCT_LABEL = "nvidia.com/gpu.product"
GPU_RESOURCE = "nvidia.com/gpu"
# also the prefix of MIG slices and shared GPUs
GPU_VENDOR = "nvidia.com/"


class NamespacedName(NamedTuple):
    """Namespace and name of an EncoderModel."""

    namespace: str
    name: str


def labels(model: str, component: str, revision: str | None = None) -> dict[str, str]:
    """Return the labels of a child."""
    found = {MODEL: model, COMPONENT: component, MANAGED_BY: MANAGER}
    return found | ({REVISION: revision} if revision else {})


def artifacts_pvc(model: str) -> str:
    """Return the name of the PersistentVolumeClaim that the operator creates for a model."""
    return f"{model}-artifacts"


def prep_job(model: str, key: str) -> str:
    """Return the name of the Job that prepares the artifact `key`."""
    return f"{model}-{key[:16]}-prep"


def parity_job(model: str, revision: str, attempt: int) -> str:
    """Return the name of the Job of one attempt to verify a revision."""
    return f"{model}-{revision}-parity-{attempt}"


def revision(model: str, revision_hash: str) -> str:
    """Return the name of the ControllerRevision that records a revision."""
    return f"{model}-{revision_hash}"


def owner_reference(model: str, uid: str) -> Json:
    """Return the owner reference through which the garbage collector deletes a child together with its model."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "name": model,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
