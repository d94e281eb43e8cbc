"""What the operator counts. vLLM's own metrics are the engine's business."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()

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
BEHIND = Gauge(
    "encoder_watch_behind", "EncoderModels whose newest version the watch has not brought in time.", registry=REGISTRY
)
