"""Definitions of the operator's metrics. The engine exposes vLLM's metrics itself.

No label contains the name or namespace of an EncoderModel, so the number of series does not grow with the number of
models. The only exception, `encoder_model_condition`, has a limit on the number of models.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

REGISTRY = CollectorRegistry()
# memory, CPU time and start time of the process under the standard metric names
ProcessCollector(registry=REGISTRY)

RECONCILE_SECONDS = Histogram(
    "encoder_reconcile_seconds",
    "Duration of one reconcile of an EncoderModel.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    registry=REGISTRY,
)
RECONCILES = Counter("encoder_reconcile", "Reconciles of EncoderModels by result.", ["result"], registry=REGISTRY)
THROTTLED = Counter(
    "encoder_reconcile_throttled",
    "Reconciles that were delayed because their EncoderModel was reconciled too often.",
    registry=REGISTRY,
)
REQUESTS = Counter(
    "encoder_api_requests",
    "Requests to the API server by verb, kind and status code.",
    ["verb", "kind", "code"],
    registry=REGISTRY,
)
UPDATES = Counter(
    "encoder_child_updates",
    "Updates of existing children whose fields differed from the wanted ones, by kind.",
    ["kind"],
    registry=REGISTRY,
)
QUEUED = Gauge("encoder_queue_depth", "EncoderModels that wait to be reconciled.", registry=REGISTRY)
# the served namespaces are a setting, so the number of series does not grow with the number of models
NAMESPACE_UNREADABLE = Gauge(
    "encoder_namespace_unreadable",
    "1 while the operator cannot read a namespace that it serves. Set only if the served namespaces are listed.",
    ["served_namespace"],
    registry=REGISTRY,
)
LEADER = Gauge(
    "encoder_leader", "1 while this operator holds the Lease, or if leader election is disabled.", registry=REGISTRY
)
MODELS = Gauge("encoder_models", "EncoderModels by phase and plugin.", ["phase", "plugin"], registry=REGISTRY)
# off by default: the number of series grows with the number of models
MODEL_CONDITION = Gauge(
    "encoder_model_condition",
    "1 if a condition of an EncoderModel is True, otherwise 0. Optional.",
    ["model_namespace", "model", "condition"],
    registry=REGISTRY,
)
PREPS = Gauge(
    "encoder_preps",
    "EncoderModels with a prep Job that runs (running), with one whose pod cannot be created or scheduled (pending), and waiting for a slot (queued).",
    ["state"],
    registry=REGISTRY,
)
PREP_SECONDS = Histogram(
    "encoder_prep_seconds",
    "Duration of successful prep Jobs.",
    buckets=(5, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200),
    registry=REGISTRY,
)
PREP_BYTES = Counter("encoder_prep_bytes", "Bytes of artifacts that prep Jobs have created.", registry=REGISTRY)
PARITY_RESULTS = Counter(
    "encoder_parity_results",
    "Parity checks by plugin and result; an inconclusive one is counted when it is retried.",
    ["plugin", "result"],
    registry=REGISTRY,
)


def initialize(plugins: Iterable[str]) -> None:
    """Create the series that alerts use. A counter that first appears with the value 1 has no increase, so no alert would fire."""
    for result in ("ok", "InternalError"):
        RECONCILES.labels(result)
    for plugin in plugins:
        for result in ("Passed", "Failed", "Inconclusive"):
            PARITY_RESULTS.labels(plugin, result)
