"""From a published checkpoint to an artifact."""
