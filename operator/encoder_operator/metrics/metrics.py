"""What the operator counts. vLLM's own metrics are the engine's business.

No label takes its values from an EncoderModel's name or namespace: the number of series does not grow with the number of models.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

REGISTRY = CollectorRegistry()
# memory, CPU and start time of the operator's process, under the names that everybody's have
ProcessCollector(registry=REGISTRY)

RECONCILE_SECONDS = Histogram(
    "encoder_reconcile_seconds",
    "Duration of one look at an EncoderModel.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    registry=REGISTRY,
)
RECONCILES = Counter("encoder_reconcile", "Looks at EncoderModels, by result.", ["result"], registry=REGISTRY)
REQUESTS = Counter(
    "encoder_api_requests",
    "Requests to the API server, by verb, kind and answer.",
    ["verb", "kind", "code"],
    registry=REGISTRY,
)
UPDATES = Counter(
    "encoder_child_updates",
    "Children that were there, were not as they should be, and were changed.",
    ["kind"],
    registry=REGISTRY,
)
QUEUED = Gauge("encoder_queue_depth", "EncoderModels that wait for a look.", registry=REGISTRY)
BEHIND = Gauge("encoder_watch_behind", "Kinds whose watch is silent though something has changed.", registry=REGISTRY)
LEADER = Gauge("encoder_leader", "1 while this operator holds the Lease, or needs none.", registry=REGISTRY)
MODELS = Gauge("encoder_models", "EncoderModels, by phase and plugin.", ["phase", "plugin"], registry=REGISTRY)
PREPS = Gauge(
    "encoder_preps", "Prep Jobs: running ones, and EncoderModels that wait for a place.", ["state"], registry=REGISTRY
)
PREP_SECONDS = Histogram(
    "encoder_prep_seconds",
    "Duration of prep Jobs that made an artifact.",
    buckets=(5, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200),
    registry=REGISTRY,
)
PREP_BYTES = Counter("encoder_prep_bytes", "Bytes of artifacts that prep Jobs have made.", registry=REGISTRY)
PARITY_RESULTS = Counter(
    "encoder_parity_results",
    "Comparisons with the original library, by plugin and result; an inconclusive one is counted when it is tried again.",
    ["plugin", "result"],
    registry=REGISTRY,
)


def initialize(plugins: Iterable[str]) -> None:
    """Show the counters that alerts watch from the start: what appears at 1 has not increased, and no alert would fire."""
    for result in ("ok", "Bug"):
        RECONCILES.labels(result)
    for plugin in plugins:
        for result in ("Passed", "Failed", "Inconclusive"):
            PARITY_RESULTS.labels(plugin, result)
