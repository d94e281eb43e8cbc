"""Types of the EncoderModel resource, version v1alpha1.

Docstrings of fields are the descriptions in the CustomResourceDefinition (`crd.py`) and in docs/encodermodel.md
(`docs.py`).
"""

from encoder_operator.api.v1alpha1.base import Accelerator, EnvVar, Resources, Rule, rule
from encoder_operator.api.v1alpha1.network import HttpRoute, Network, NetworkPolicy, ServiceSpec
from encoder_operator.api.v1alpha1.scheduling import LabelSelector, Toleration
from encoder_operator.api.v1alpha1.serving import LoadFormat, Parity, Serving
from encoder_operator.api.v1alpha1.source import CaBundle, HuggingFace, NewClaim, Prepare, Source
from encoder_operator.api.v1alpha1.spec import Rollout, Spec
from encoder_operator.api.v1alpha1.status import Status

__all__ = [
    "Accelerator",
    "CaBundle",
    "EnvVar",
    "HttpRoute",
    "HuggingFace",
    "LabelSelector",
    "LoadFormat",
    "Network",
    "NetworkPolicy",
    "NewClaim",
    "Parity",
    "Prepare",
    "Resources",
    "Rollout",
    "Rule",
    "ServiceSpec",
    "Serving",
    "Source",
    "Spec",
    "Status",
    "Toleration",
    "rule",
]
