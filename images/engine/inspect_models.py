"""Fills vLLM's cache of inspected model classes while an engine image is built.

vLLM imports a model's class in a process of its own before it loads the model, to inspect its interfaces, and keeps the
answer below ``VLLM_CACHE_ROOT/modelinfos``. A pod with a read-only root would repeat that at each start.

Without arguments it inspects vLLM's own classes; with ``--own`` those of our plugins, which change more often: the
answer is kept with a hash of the module's file, and so needs the very file that the image will have. Names of further
classes may follow: `make engine-tests` inspects those of its tests at once, where vLLM would import itself for each.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

from vllm.model_executor.models import registry

# architectures that pooling plugins build on, beside those that vLLM itself lists as embedding models
ALSO = ("Qwen3ForCausalLM", "Qwen3Model", "Gemma3ForCausalLM", "Lfm2ForCausalLM", "Lfm2Model")
REQUIRED = ("Qwen3ForCausalLM", "Gemma3TextModel")

Answer = TypeVar("Answer")


def here(inspect: Callable[[], Answer]) -> Answer:
    """Inspect in this very process: vLLM's reason for another one is CUDA, which the build of an image does not have."""
    return inspect()


def main() -> int:
    """Inspects every class, and fails if one of those that must be there could not be imported."""
    registry._run_in_subprocess = here
    if sys.argv[1:2] == ["--own"]:
        wanted = required = [*own(), *sys.argv[2:]]
    else:
        wanted = [*registry._EMBEDDING_MODELS, *registry._LATE_INTERACTION_MODELS, *ALSO]
        required = list(REQUIRED)
    failed = {}
    began = time.monotonic()
    for architecture in dict.fromkeys(wanted):
        model = registry.ModelRegistry.models.get(architecture)
        if model is None:
            continue
        try:
            model.inspect_model_cls()
        except Exception as error:  # a model whose own requirements are not installed says so in any way it likes
            failed[architecture] = f"{type(error).__name__}: {error}"
    for architecture, reason in failed.items():
        print(f"{architecture}: {reason}".splitlines()[0][:200])
    print(f"{len(set(wanted)) - len(failed)} of {len(set(wanted))} architectures in {time.monotonic() - began:.0f} s")
    return 1 if set(required) & (set(failed) | (set(wanted) - set(registry.ModelRegistry.models))) else 0


def own() -> list[str]:
    """Registers our plugins, and returns the architectures that they bring."""
    import encoder_plugins
    from encoder_plugins import catalog

    encoder_plugins.register()
    return [name for plugin in catalog.plugins().values() for name in plugin.architectures]


if __name__ == "__main__":
    sys.exit(main())
