"""Export conditions of each EncoderModel, as long as there are not too many."""

from __future__ import annotations

from encoder_operator.metrics import metrics
from encoder_operator.naming import NamespacedName
from encoder_operator.revisions.hashing import Json

# those that alerts are about; each costs one series per model
EXPORTED = ("Ready", "Degraded")


class ConditionGauge:
    """Gauge of conditions by EncoderModel.

    Args:
        max_models: Number of EncoderModels above which nothing is exported; 0 for never.
    """

    def __init__(self, max_models: int) -> None:
        self._max_models = max_models
        self._models: set[NamespacedName] = set()

    @property
    def models(self) -> frozenset[NamespacedName]:
        """Return the EncoderModels that are known."""
        return frozenset(self._models)

    def set(self, key: NamespacedName, status: Json) -> None:
        """Export the conditions of an EncoderModel. Each model is reconciled regularly, so all are exported again below the limit."""
        if not self._max_models:
            return
        self._models.add(key)
        if len(self._models) > self._max_models:
            metrics.MODEL_CONDITION.clear()
            return
        for entry in status.get("conditions", []):
            if entry["type"] in EXPORTED:
                metrics.MODEL_CONDITION.labels(*key, entry["type"]).set(entry["status"] == "True")

    def remove(self, key: NamespacedName) -> None:
        """Remove a deleted EncoderModel."""
        self._models.discard(key)
        metrics.MODEL_CONDITION.remove_by_labels({"model_namespace": key.namespace, "model": key.name})
