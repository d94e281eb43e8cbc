"""The EncoderModel resource: what a person writes, and what the operator answers. The contract; no logic.

Docstrings below fields become the descriptions of the CustomResourceDefinition (``crd.py``), and rows of docs/encodermodel.md.
"""

from encoder_operator.api.network import HttpRoute, Network, NetworkPolicy, ServiceSpec
from encoder_operator.api.parts import Accelerator, EnvVar, Resources, Rule, rule
from encoder_operator.api.placement import LabelSelector, Toleration
from encoder_operator.api.serving import LoadFormat, Parity, Serving
from encoder_operator.api.source import CaBundle, HuggingFace, NewClaim, Prepare, Source
from encoder_operator.api.spec import Rollout, Spec
from encoder_operator.api.status import Status

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
