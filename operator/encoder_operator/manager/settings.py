"""Settings of the operator, from the environment (prefix ``ENCODER_``). Read once, at start; nothing else reads the environment."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from encoder_operator.api.v1alpha1 import Accelerator, Resources

Seconds = Annotated[float, Field(gt=0)]


class Images(BaseModel):
    """Which image does what, by plugin. Pinned in a revision when that is made; a later change only sets UpdateAvailable."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    operator: str = ""
    """The operator's own image; parity Jobs run in it."""
    engine: dict[Accelerator, dict[str, str]] = Field(default_factory=dict)
    """Engine images: accelerator, then plugin."""
    prep: dict[str, str] = Field(default_factory=dict)
    """Preparation images by plugin: these hold the original library."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(default="IfNotPresent", alias="pullPolicy")
    """How nodes pull these images."""


class Settings(BaseSettings):
    """Everything a cluster's administrator decides for all EncoderModels."""

    model_config = SettingsConfigDict(env_prefix="ENCODER_", frozen=True, use_attribute_docstrings=True)

    images: Images = Images()
    """Images as JSON: ``{"operator": ref, "engine": {"cpu": {plugin: ref}, "nvidia": {plugin: ref}}, "prep": {plugin: ref}}``."""
    prep_stall_seconds: int = Field(default=120, ge=5)
    """A download that brings no byte for this many seconds is given up and tried again."""
    prep_resources: Resources = Resources(requests={"cpu": "500m", "memory": "1Gi"})
    """Resources of a prep Job whose EncoderModel names none, as JSON."""
    serving_resources: Resources = Resources(requests={"cpu": "500m", "memory": "2Gi"})
    """Resources of serving pods whose EncoderModel names none, as JSON. Part of a revision, so a change only sets UpdateAvailable."""
    parity_resources: Resources = Resources(requests={"cpu": "50m", "memory": "128Mi"}, limits={"memory": "512Mi"})
    """Resources of parity Jobs, as JSON."""
    namespaces: list[str] = Field(default_factory=list)
    """Namespaces whose EncoderModels are served, as JSON; empty for all. With names here the operator reads no Nodes, so pods are
    verified one by one unless their EncoderModel names its accelerator product."""
    allow_trust_remote_code: bool = False
    """Whether EncoderModels may set spec.serving.trustRemoteCode: their pods then run Python code from the checkpoint's repository."""
    max_preps: int = Field(default=4, ge=1)
    """How many prep Jobs run at once, over all namespaces; further EncoderModels wait with the reason Queued."""
    concurrency: int = Field(default=16, ge=1)
    """How many EncoderModels are looked at at once. What they need is read together, so more are no more requests."""
    lease: bool = False
    """Whether to work only while holding a Lease. Needed as soon as two operators may run at the same time."""
    lease_namespace: str = "default"
    """Namespace of the Lease."""
    lease_name: str = "encoder-operator"
    """Name of the Lease."""
    lease_seconds: float = Field(default=15.0, ge=3)
    """After this many seconds without a sign of life of its holder, the Lease is taken by another operator."""
    identity: str = ""
    """Who this operator is in the Lease; empty for the pod's name."""
    resync_seconds: Seconds = 300.0
    """Every EncoderModel is looked at again after this many seconds even if nothing happened."""
    port: int = Field(default=8080, ge=0, le=65535)
    """Port of /healthz, /readyz and /metrics; 0 takes any free one."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least urgent lines that are still printed."""
    crash_after_write: int | None = Field(default=None, ge=1)
    """For tests: the operator kills itself with SIGKILL right after its n-th write to the API server. None for never."""
    crash_before_write: int | None = Field(default=None, ge=1)
    """For tests: the same, right before its n-th write."""

    @property
    def namespaced(self) -> bool:
        """Whether only some namespaces are served, and nothing outside of them is read."""
        return bool(self.namespaces)
