"""The operator of EncoderModels: prepare checkpoints, verify the served models, and keep them running.

`manager` starts the process. `controller` watches the cluster and reconciles one EncoderModel at a time: `state` reads
the EncoderModel and its children, `planner` decides what to do, and `client` writes the result. `resources` builds the
manifests, `revisions` identifies them by hashes, `status` computes the conditions, `validation` refuses specs that
cannot work, and `api` holds the types of the resource.

The import contracts in pyproject.toml list all modules from the top layer down.
"""
