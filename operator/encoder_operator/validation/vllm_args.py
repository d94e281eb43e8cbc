"""vLLM arguments and environment variables that an EncoderModel must not set.

There are two groups: arguments that the operator or the entry point sets, because the Service, the probes or the parity
check depend on them, and arguments that load code from elsewhere.
"""

from __future__ import annotations

from types import MappingProxyType

_SET = "reserved for the operator"
_CODE = "it loads code that has not been reviewed"
_SPREAD = "each pod holds one copy of the model: use spec.serving.replicas and tensorParallelSize"
_ELSEWHERE = "it reads from outside the verified artifact"
_TLS = "the Service uses plain HTTP"
_OPEN = "it adds an interface that bypasses the limits or can change or stop the engine"
_LOGS = "a logging configuration can call arbitrary code"
_NOT_IN_CEL = frozenset({_SPREAD, _ELSEWHERE, _TLS, _OPEN, _LOGS})

DENIED = MappingProxyType(
    {
        "additional-config": _SET,
        "allowed-local-media-path": _ELSEWHERE,
        "api-key": "it would lock out the probes and the parity check",
        "api-server-count": "use spec.serving.apiServerCount",
        "code-revision": _CODE,
        "config": "a configuration file could set any other argument",
        "convert": "the plugin determines the model's output",
        "data-parallel-address": _SPREAD,
        "data-parallel-backend": _SPREAD,
        "data-parallel-external-lb": _SPREAD,
        "data-parallel-hybrid-lb": _SPREAD,
        "data-parallel-multi-port-external-lb": _SPREAD,
        "data-parallel-rank": _SPREAD,
        "data-parallel-rpc-port": _SPREAD,
        "data-parallel-size": "use spec.serving.replicas",
        "data-parallel-size-local": _SPREAD,
        "data-parallel-start-rank": _SPREAD,
        "data-parallel-supervisor-port": _SPREAD,
        "decode-context-parallel-size": _SPREAD,
        "device-ids": "Kubernetes assigns the pod's GPUs",
        "distributed-executor-backend": _CODE,
        "download-dir": "serving pods are offline, and the artifact is complete",
        "dtype": "use spec.serving.dtype",
        "ec-transfer-config": _CODE,
        "elastic-ep-max-dp-size": _SPREAD,
        "enable-elastic-ep": _SPREAD,
        "enable-scale-out": _SPREAD,
        "enable-sleep-mode": _OPEN,
        "enable-ssl-refresh": _TLS,
        "grpc": _OPEN,
        "grpc-port": _OPEN,
        "headless": _SET,
        "hf-config-path": _ELSEWHERE,
        "hf-token": "serving pods are offline and have no token",
        "host": _SET,
        "io-processor-plugin": _SET,
        "kv-transfer-config": _CODE,
        "load-format": "use spec.serving.loadFormat",
        "log-config-file": _LOGS,
        "logging-config": _LOGS,
        "logits-processors": _CODE,
        "lora-modules": _ELSEWHERE,
        "master-addr": _SPREAD,
        "master-port": _SPREAD,
        "max-model-len": "use spec.serving.maxModelLen",
        "middleware": _CODE,
        "model": _SET,
        "model-class-overrides": _CODE,
        "model-tag": _SET,
        "nnodes": _SPREAD,
        "node-rank": _SPREAD,
        "pipeline-parallel-size": "use spec.serving.tensorParallelSize",
        "port": _SET,
        "prefill-context-parallel-size": _SPREAD,
        "profiler-config": _OPEN,
        "quantization": "use spec.serving.quantization",
        "reasoning-parser-plugin": _CODE,
        "revision": "use the revision of spec.source",
        "root-path": _SET,
        "runner": _SET,
        "scheduler-cls": _CODE,
        "scheduling-policy": "the plugin relies on request priorities",
        "served-model-name": _SET,
        "shutdown-timeout": _SET,
        "speculative-config": _ELSEWHERE,
        "ssl-ca-certs": _TLS,
        "ssl-cert-reqs": _TLS,
        "ssl-certfile": _TLS,
        "ssl-ciphers": _TLS,
        "ssl-keyfile": _TLS,
        "task": _SET,
        "tensor-parallel-size": "use spec.serving.tensorParallelSize",
        "tokenizer": "the artifact contains the tokenizer",
        "tokenizer-revision": "the artifact contains the tokenizer",
        "tool-parser-plugin": _CODE,
        "tool-server": _CODE,
        "trust-remote-code": "use spec.serving.trustRemoteCode",
        "uds": _SET,
        "weight-transfer-config": _OPEN,
        "worker-cls": _CODE,
        "worker-extension-cls": _CODE,
    }
)

# vLLM's short options
SHORT_OPTIONS = MappingProxyType(
    {
        "asc": "api-server-count",
        "dcp": "decode-context-parallel-size",
        "dp": "data-parallel-size",
        "dpa": "data-parallel-address",
        "dpb": "data-parallel-backend",
        "dpe": "data-parallel-external-lb",
        "dph": "data-parallel-hybrid-lb",
        "dpl": "data-parallel-size-local",
        "dpm": "data-parallel-multi-port-external-lb",
        "dpn": "data-parallel-rank",
        "dpp": "data-parallel-rpc-port",
        "dpr": "data-parallel-start-rank",
        "n": "nnodes",
        "pcp": "prefill-context-parallel-size",
        "pp": "pipeline-parallel-size",
        "q": "quantization",
        "r": "node-rank",
        "sc": "speculative-config",
        "tp": "tensor-parallel-size",
    }
)

# variables with the effect of a denied argument, or that load code
DENIED_ENVIRONMENT = MappingProxyType(
    {
        "HF_HUB_OFFLINE": _SET,
        "HF_TOKEN": "use spec.source.huggingFace.tokenSecretRef, which only the prep Job sees",
        "HOME": _SET,
        "HUGGING_FACE_HUB_TOKEN": "use spec.source.huggingFace.tokenSecretRef, which only the prep Job sees",
        "LD_PRELOAD": _CODE,
        "LOGNAME": _SET,
        "PATH": _SET,
        "PYTHONHOME": _CODE,
        "PYTHONPATH": _CODE,
        "PYTHONSTARTUP": _CODE,
        "TRANSFORMERS_OFFLINE": _SET,
        "VLLM_API_KEY": "it would lock out the probes and the parity check",
        "VLLM_LOGGING_CONFIG_PATH": _LOGS,
        "VLLM_PLUGINS": _CODE,
        "VLLM_PORT": _SET,
        "VLLM_SERVER_DEV_MODE": _OPEN,
    }
)


def denied_option(argument: str) -> str | None:
    """Return the denied option that `argument` would set, or None.

    vLLM accepts underscores for dashes, `--option.key=value`, and any unambiguous abbreviation.
    """
    if not argument.startswith("--"):
        return SHORT_OPTIONS.get(argument[1:].partition("=")[0]) if argument.startswith("-") else None
    name = argument[2:].partition("=")[0].partition(".")[0].replace("_", "-").lower()
    if name in DENIED:
        return name
    # an abbreviation of a denied option; vLLM itself rejects the shortest ones as ambiguous
    return next((option for option in DENIED if len(name) > 2 and option.startswith(name)), None)


def cel_pattern() -> str:
    """Return the regular expression by which the API server rejects the most likely denied arguments in their plain spelling.

    The API server limits the cost of a rule, which grows with the length of the expression. The operator rejects the
    rest.
    """
    denied = [option for option, why in DENIED.items() if why not in _NOT_IN_CEL]
    # the dot matches a dash or an underscore and is shorter than a character class
    options = "|".join(option.replace("-", ".") for option in denied)
    short = "|".join(short for short, option in SHORT_OPTIONS.items() if option in denied)
    return f"^(--({options})([=.].*)?|-({short})(=.*)?)$"
