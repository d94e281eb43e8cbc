"""Settings of the operator, read once at start from environment variables with the prefix `ENCODER_`."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic_settings import BaseSettings, SettingsConfigDict

from encoder_operator import naming
from encoder_operator.api.v1alpha1 import Accelerator, LabelSelector, Resources

Seconds = Annotated[float, Field(gt=0)]
Weekday = Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
_TIME_OF_DAY = "^(([01][0-9]|2[0-3]):[0-5][0-9])?$"


def _named_image(image: str) -> str:
    if image and not re.fullmatch(naming.IMAGE, image):
        raise ValueError(naming.NOT_AN_IMAGE)
    return image


Image = Annotated[str, AfterValidator(_named_image)]


class Images(BaseModel):
    """Container images by plugin. A revision pins its images when it is created; later changes only set UpdateAvailable."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    operator: Image = ""
    """Image of the operator, in which parity Jobs run too."""
    engine: dict[Accelerator, dict[str, Image]] = Field(default_factory=dict)
    """Engine images by accelerator, then plugin."""
    prep: dict[str, Image] = Field(default_factory=dict)
    """Preparation images by plugin. They contain the original library."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(default="IfNotPresent", alias="pullPolicy")
    """Pull policy of these images."""


class _Values(BaseModel):
    """A part of the chart's values, in their spelling."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, validate_by_name=True)


class Proxy(_Values):
    """Proxies of prep Jobs; empty for none."""

    http: str = ""
    https: str = ""
    no_proxy: str = ""


class NamedKey(_Values):
    """A key of a ConfigMap or Secret with this name in the namespace of each model; no name for none."""

    name: str = ""
    key: str = ""


class Defaults(_Values):
    """What EncoderModels get that do not set the field themselves. A change does not affect existing pods and volumes."""

    proxy: Proxy = Proxy()
    ca_config_map: NamedKey = NamedKey(key="ca.crt")
    hub_endpoint: str = ""
    token_secret: NamedKey = NamedKey(key="token")
    storage_class_name: str = ""


class UpdateWindow(_Values):
    """When automatic updates may start, in UTC. Without times, at any time of the days."""

    days: list[Weekday] = Field(default=list(get_args(Weekday)), min_length=1)
    start: Annotated[str, Field(pattern=_TIME_OF_DAY)] = ""
    end: Annotated[str, Field(pattern=_TIME_OF_DAY)] = ""

    @model_validator(mode="after")
    def _has_both_times(self) -> Self:
        if bool(self.start) != bool(self.end):
            raise ValueError("set both start and end, or neither")
        if self.start and self.start == self.end:
            raise ValueError("start and end must differ; without them, the window is always open")
        return self


class Updates(_Values):
    """Limits of automatic updates."""

    window: UpdateWindow = UpdateWindow()
    max_at_once: Annotated[int, Field(ge=1)] = 1


def _with_decimals(resources: object) -> object:
    """Return resources with each decimal number as text: `cpu: 0.5` is a quantity in Kubernetes' own objects, and so in the chart's values."""
    if isinstance(resources, dict):
        return {name: _with_decimals(found) for name, found in resources.items()}
    return format(Decimal(repr(resources)), "f") if isinstance(resources, float) else resources


DefaultResources = Annotated[Resources, BeforeValidator(_with_decimals)]


class Settings(BaseSettings):
    """Settings that the cluster administrator chooses for all EncoderModels."""

    model_config = SettingsConfigDict(
        env_prefix="ENCODER_",
        frozen=True,
        use_attribute_docstrings=True,
        # a value of the chart that is null
        env_ignore_empty=True,
    )

    images: Images = Images()
    """Images as JSON: `{"operator": ref, "engine": {"cpu": {plugin: ref}, "nvidia": {plugin: ref}}, "prep": {plugin:
    ref}}`."""
    prep_stall_seconds: int = Field(default=120, ge=5)
    """Seconds without data after which a download is aborted and retried."""
    prep_resources: DefaultResources = Resources(requests={"cpu": "500m", "memory": "1Gi"})
    """Default resources of prep Jobs, as JSON, for EncoderModels that set none."""
    serving_resources: DefaultResources = Resources(requests={"cpu": "500m", "memory": "2Gi"})
    """Default resources of serving pods, as JSON, for EncoderModels that set none. They are part of a revision, so a
    change only sets UpdateAvailable."""
    parity_resources: DefaultResources = Resources(
        requests={"cpu": "50m", "memory": "128Mi"}, limits={"memory": "512Mi"}
    )
    """Resources of parity Jobs, as JSON."""
    namespaces: list[str] = Field(default_factory=list)
    """Namespaces to serve, as a JSON list; empty for all namespaces. With a list, the operator does not read Nodes, so
    each pod is verified separately unless its EncoderModel sets acceleratorProduct."""
    namespace_selector: LabelSelector = LabelSelector()
    """Namespaces to serve by their labels, as the JSON of a LabelSelector: `{"matchLabels": {}, "matchExpressions": []}`. Changes of
    the labels are followed. An empty selector selects all namespaces; any other one cannot be combined with `ENCODER_NAMESPACES`."""
    allow_trust_remote_code: bool = False
    """Whether EncoderModels may set trustRemoteCode in spec.serving and spec.prepare, which lets their pods run Python code from the
    checkpoint's repository."""
    allow_custom_images: bool = True
    """Whether EncoderModels may set spec.image."""
    allow_pod_template: bool = True
    """Whether EncoderModels may set spec.serving.podTemplate."""
    allow_threshold_overrides: bool = True
    """Whether EncoderModels may replace the thresholds of their plugin with spec.parity.thresholds."""
    weakest_parity_mode: Literal["Enforce", "Warn", "Disabled"] = "Disabled"
    """Weakest spec.parity.mode that EncoderModels may set. Disabled allows all, Enforce only itself."""
    prep_service_accounts: list[str] = Field(default_factory=list)
    """Service accounts that EncoderModels may set in spec.prepare.serviceAccountName, as a JSON list."""
    defaults: Defaults = Defaults()
    """Proxy, CA certificates, hub mirror, token and StorageClass for EncoderModels that set none, as JSON."""
    updates: Updates = Updates()
    """When EncoderModels with spec.rollout.updatePolicy Automatic are updated, and how many at the same time, as JSON."""
    fixed_user: bool = True
    """Whether pods run as user and group 10001. False leaves user and groups to the platform, such as OpenShift, which
    assigns a range to each namespace."""
    condition_metric_max_models: int = Field(default=0, ge=0)
    """Number of EncoderModels up to which the metric encoder_model_condition has the conditions Ready and Degraded of
    each, with its name; 0 for never."""
    max_preps: int = Field(default=4, ge=1)
    """Maximum number of prep Jobs that run at the same time, over all namespaces. Further EncoderModels wait with the
    reason Queued."""
    max_preps_per_namespace: int = Field(default=0, ge=0)
    """Maximum number of unfinished prep Jobs in one namespace; 0 means half of max_preps, rounded up, or all of them if
    the operator serves a single namespace."""
    concurrency: int = Field(default=16, ge=1)
    """Maximum number of concurrent reconciles. Their reads are batched, so a higher number does not mean more
    requests."""
    lease: bool = False
    """Whether to use leader election. Required as soon as two operators may run at the same time."""
    lease_namespace: str = "default"
    """Namespace of the Lease."""
    lease_name: str = "encoder-operator"
    """Name of the Lease."""
    lease_seconds: float = Field(default=15.0, ge=3)
    """Duration of the Lease in seconds. Another operator may take over if it has not been renewed for this long."""
    identity: str = ""
    """Holder identity in the Lease; empty for the pod's name."""
    resync_seconds: Seconds = 300.0
    """Seconds after which every EncoderModel is reconciled even without an event."""
    port: int = Field(default=8080, ge=0, le=65535)
    """Port of /healthz, /readyz and /metrics; 0 chooses a free port."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum level of log messages."""
    crash_after_write: int | None = Field(default=None, ge=1)
    """For tests: kill the operator with SIGKILL right after its n-th write to the API server. None disables this."""
    crash_before_write: int | None = Field(default=None, ge=1)
    """For tests: kill the operator with SIGKILL right before its n-th write to the API server. None disables this."""

    @model_validator(mode="after")
    def _has_one_choice_of_namespaces(self) -> Self:
        if self.namespaces and self.selects_namespaces:
            raise ValueError("set either namespaces or namespace_selector: they exclude each other")
        return self

    @property
    def namespace_max_preps(self) -> int:
        """Maximum number of unfinished prep Jobs in one namespace."""
        default = self.max_preps if len(self.namespaces) == 1 else (self.max_preps + 1) // 2
        return self.max_preps_per_namespace or default

    @property
    def namespaced(self) -> bool:
        """Whether the operator serves, and reads, listed namespaces only."""
        return bool(self.namespaces)

    @property
    def selects_namespaces(self) -> bool:
        """Whether the operator serves the namespaces that have some labels, and reads all."""
        return self.namespace_selector != LabelSelector()
