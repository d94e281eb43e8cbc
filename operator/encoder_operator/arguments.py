"""Which vLLM arguments an EncoderModel may not pass, and why not.

Two kinds: those that the operator or the entry point sets, because the service, the probes or the proof rest on them;
and those that load code from elsewhere.
"""

from __future__ import annotations

from types import MappingProxyType

_SET = "the operator sets it"
_CODE = "it loads code that nobody has checked"

DENIED = MappingProxyType(
    {
        "additional-config": _SET,
        "api-key": "the probes and the parity check would be locked out",
        "api-server-count": _SET,
        "code-revision": _CODE,
        "config": "its file could set any other argument",
        "data-parallel-size": "scale spec.serving.replicas instead",
        "dtype": "use spec.serving.dtype",
        "headless": _SET,
        "hf-token": "serving pods are offline and never see a token",
        "host": _SET,
        "io-processor-plugin": _SET,
        "logits-processors": _CODE,
        "max-model-len": "use spec.serving.maxModelLen",
        "middleware": _CODE,
        "model": _SET,
        "model-tag": _SET,
        "port": _SET,
        "reasoning-parser-plugin": _CODE,
        "revision": "the source's revision is the only one",
        "root-path": _SET,
        "runner": _SET,
        "served-model-name": _SET,
        "shutdown-timeout": _SET,
        "ssl-ca-certs": "the Service speaks plain HTTP",
        "ssl-certfile": "the Service speaks plain HTTP",
        "ssl-keyfile": "the Service speaks plain HTTP",
        "task": _SET,
        "tokenizer": "the artifact holds the tokenizer",
        "tokenizer-revision": "the artifact holds the tokenizer",
        "tool-parser-plugin": _CODE,
        "trust-remote-code": _CODE,
        "uds": _SET,
        "worker-cls": _CODE,
        "worker-extension-cls": _CODE,
    }
)


def denied(argument: str) -> str | None:
    """Return the denied option that ``argument`` would set, or None.

    vLLM accepts underscores for dashes, ``--option.key=value``, and any unambiguous abbreviation.
    """
    if not argument.startswith("--"):
        return None
    name = argument[2:].split("=", 1)[0].split(".", 1)[0].replace("_", "-").lower()
    if name in DENIED:
        return name
    # an abbreviation of a denied option; the shortest are refused by vLLM itself as ambiguous
    return next((option for option in DENIED if len(name) > 2 and option.startswith(name)), None)


def cel_pattern() -> str:
    """Return the regular expression by which the API server refuses the plain spellings."""
    options = "|".join(option.replace("-", "[-_]") for option in DENIED)
    return f"^--({options})([=.].*)?$"
