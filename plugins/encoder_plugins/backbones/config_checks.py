"""Typed access to the fields of a model configuration: a value that cannot be served is refused by field and value.

The readers of all backbones use it, in the engine on the configuration object of transformers, and in prep on the object
of a ``config.json``. Standard library only, so that both read a configuration by the same code.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from encoder_plugins.errors import NotServable, Unsupported
from encoder_plugins.plugin import Accelerator

# head sizes of vLLM 0.32's CPU attention (v1/attention/backends/cpu_attn.py); any other ends the engine at the first request
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
# the head size that transformers assumes where the configuration of such a model has no head_dim
_DEFAULT_HEAD_SIZES = {"gemma3_text": 256, "qwen3": 128}
# other names of the fields that give the head size
_HIDDEN_SIZE = ("hidden_size", "d_model", "dim")
_HEADS = ("num_attention_heads", "num_heads", "n_heads")


class UnsupportedConfig(Unsupported):
    """A model configuration has a value that the backbone does not support, or that no model can have."""


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """The fields of one configuration.

    Attributes:
        config: A configuration object of transformers, or the object of a ``config.json``.
        defaults: What transformers assumes for a field that is absent.
        aliases: Other names of fields that transformers accepts, by the field's own name.
    """

    config: Any
    defaults: Mapping[str, Any]
    aliases: Mapping[str, str] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of ``name``, else transformers' default, else ``default``."""
        for known in (name, self.aliases.get(name)):
            if known is None:
                continue
            if isinstance(self.config, Mapping):
                if known in self.config:
                    return self.config[known]
            elif hasattr(self.config, known):
                return getattr(self.config, known)
        return self.defaults.get(name, default)

    def refuse(self, name: str, reason: str) -> UnsupportedConfig:
        """Return the error for the value of ``name``."""
        model_type = self.get("model_type")
        return UnsupportedConfig(f"{model_type}: {name}={self.get(name)!r} is not supported: {reason}")

    def integer(self, name: str, *, least: int = 1, default: int | None = None) -> int:
        """Return a whole number.

        Raises:
            UnsupportedConfig: It is of another type, or below ``least``.
        """
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.refuse(name, f"it must be a whole number, at least {least}")
        return value

    def epsilon(self, name: str) -> float:
        """Return a finite number above 0.

        Raises:
            UnsupportedConfig: It is something else.
        """
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.refuse(name, "it must be a number above 0")
        return float(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return true or false.

        Raises:
            UnsupportedConfig: It is something else.
        """
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, "it must be true or false")
        return value

    def choice(self, name: str, accepted: Collection[Any], *, default: Any = None) -> Any:
        """Return the value of ``name``.

        Raises:
            UnsupportedConfig: It is not one of ``accepted``.
        """
        value = self.get(name, default)
        if not any(value == known and type(value) is type(known) for known in accepted):
            raise self.refuse(name, f"accepted: {', '.join(repr(known) for known in accepted)}")
        return value

    def divided(self, name: str, by: str) -> int:
        """Return the integer ``name`` divided by the integer ``by``.

        Raises:
            UnsupportedConfig: There is a remainder.
        """
        whole, parts = self.integer(name), self.integer(by)
        if whole % parts:
            raise self.refuse(by, f"it must divide {name}={whole}")
        return whole // parts


def supported_head_sizes(accelerator: Accelerator) -> tuple[int, ...] | None:
    """Return the head sizes of vLLM's encoder attention on ``accelerator``; None where it has a kernel for any."""
    return CPU_HEAD_SIZES if accelerator == "cpu" else None


def head_size(config: Mapping[str, Any]) -> int:
    """Return the width of an attention head, from the object of a ``config.json``.

    Raises:
        UnsupportedConfig: The fields that give it are missing or no whole numbers, or the heads do not divide the hidden size.
    """
    fields = ConfigFields(config, {"head_dim": _DEFAULT_HEAD_SIZES.get(str(config.get("model_type")))})
    if fields.get("head_dim") is not None:
        return fields.integer("head_dim")
    hidden = next((name for name in _HIDDEN_SIZE if name in config), _HIDDEN_SIZE[0])
    return fields.divided(hidden, next((name for name in _HEADS if name in config), _HEADS[0]))


def check_head_size(size: int, accelerator: Accelerator) -> None:
    """Refuse, when serving starts, a model that vLLM's own attention has no kernel for.

    Args:
        size: Width of a head.
        accelerator: What the model is to be served on.

    Raises:
        NotServable: With the sizes that are supported.
    """
    supported = supported_head_sizes(accelerator)
    if supported is not None and size not in supported:
        sizes = ", ".join(str(one) for one in supported)
        raise NotServable(
            f"The model's attention heads are {size} wide, and vLLM's attention on accelerator {accelerator} supports "
            f"{sizes} only: serve it on another accelerator."
        )
