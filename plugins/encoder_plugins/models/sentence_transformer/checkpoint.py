"""Reads the configuration of a sentence-transformers checkpoint, and refuses what would be served differently.

vLLM reads the same files, but skips what it does not know: a pooling mode becomes another one, a residual connection
or an activation is left out, all without a word. So everything that decides the result is checked here, by prep and
again by the IO processor. Neither torch nor vLLM is imported: the prep image has no vLLM.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from safetensors import SafetensorError, safe_open

from encoder_plugins.errors import RemoteCodeRefused, SourceFileNotFound, Unsupported

# sentence-transformers may be told to run the code of a checkpoint; the modules that are served stay those below
RUNS_CODE = True

# the trunks of vLLM 0.32 that were compared with sentence-transformers; see the tests
ARCHITECTURES = frozenset(
    {
        "BertModel",
        "Gemma3TextModel",
        "ModernBertModel",
        "Qwen3ForCausalLM",
        "Qwen3Model",
        "RobertaModel",
        "XLMRobertaModel",
    }
)

# module types by the names that checkpoints have for them, those that vLLM 0.32 knows
TRANSFORMER = frozenset(
    {
        "sentence_transformers.models.Transformer",
        "sentence_transformers.base.modules.transformer.Transformer",
        "sentence_transformers.sentence_transformer.modules.transformer.Transformer",
    }
)
POOLING = frozenset(
    {"sentence_transformers.models.Pooling", "sentence_transformers.sentence_transformer.modules.pooling.Pooling"}
)
DENSE = frozenset({"sentence_transformers.models.Dense", "sentence_transformers.base.modules.dense.Dense"})
NORMALIZE = frozenset(
    {
        "sentence_transformers.models.Normalize",
        "sentence_transformers.base.modules.normalize.Normalize",
        "sentence_transformers.sentence_transformer.modules.normalize.Normalize",
    }
)

POOLING_MODES = frozenset({"cls", "mean", "lasttoken"})
LEGACY_POOLING_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

# what vLLM finds under the last part of a class path of torch
ACTIVATIONS = frozenset({"Identity", "Tanh", "GELU", "ReLU", "SiLU", "Sigmoid"})

TRANSFORMER_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# settings of the Transformer module that change the result and that are not done here, with the value that changes nothing
TRANSFORMER_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "transformer_task": ("feature-extraction",),
    "processing_kwargs": ({},),
    "model_args": ({},),
    "model_kwargs": ({},),
    "config_args": ({},),
    "config_kwargs": ({},),
    "tokenizer_args": ({},),
    "processor_kwargs": ({},),
    "tokenizer_name_or_path": (),
    "module_output_name": ("token_embeddings",),
    "query_expansion": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What decides, beside weights and tokenizer, which vector a text gets.

    Attributes:
        dimensions: Numbers in a vector, before any truncation.
        normalize: Whether the last module makes vectors of length 1.
        max_tokens: Tokens kept of a text, special ones included; None leaves that to the tokenizer's own configuration.
        max_positions: Positions that the trunk has; None where it says nothing.
        padding_token: The token that a text must not hold, because the trunk's library counts positions without it,
            and vLLM with it; None where it makes no difference.
        lower_case: Whether text is lower-cased before anything else.
        prompts: Text to put before a text, by name.
        default_prompt: The name of the prompt for a request that names none; None for no prompt.
    """

    dimensions: int
    normalize: bool
    max_tokens: int | None
    max_positions: int | None
    padding_token: int | None
    lower_case: bool
    prompts: dict[str, str]
    default_prompt: str | None

    def prompt(self, name: str | None) -> str:
        """Return the text to put before a text. Raises KeyError for an unknown name."""
        wanted = self.default_prompt if name is None else name
        return "" if wanted is None else self.prompts[wanted]


def check(folder: Path, auxiliary: Mapping[str, Path] = MappingProxyType({})) -> None:
    """Refuse a checkpoint that would be served differently from what sentence-transformers computes.

    Args:
        folder: The checkpoint.
        auxiliary: Folders of further repositories, of which it needs none.

    Raises:
        Unsupported: It needs something that vLLM does not do; the message names file and field.
        SourceFileNotFound: It is not in sentence-transformers format.
    """
    if auxiliary:
        raise Unsupported(f"a sentence-transformers checkpoint needs no auxiliary repository: {', '.join(auxiliary)}")
    read(folder)


def read(folder: Path) -> Checkpoint:
    """Read and check the configuration of the checkpoint in ``folder``; raises as ``check`` does."""
    trunk = _object(folder, "config.json")
    architectures = trunk.get("architectures") or []
    if len(architectures) != 1 or architectures[0] not in ARCHITECTURES:
        raise Unsupported(
            f"config.json: architectures is {architectures}; served are: {', '.join(sorted(ARCHITECTURES))}"
        )
    if trunk.get("position_embedding_type", "absolute") != "absolute":
        raise Unsupported(
            f"config.json: position_embedding_type is {trunk['position_embedding_type']}; served is absolute"
        )
    modules = [_module(entry) for entry in _json(folder, "modules.json")]
    kinds = [kind for kind, _ in modules]
    dense = kinds.count("Dense")
    if kinds not in (expected := _order(dense), [*expected, "Normalize"]):
        raise Unsupported(
            f"modules.json: {' > '.join(kinds)}; served is Transformer > Pooling [> Dense ...] [> Normalize]"
        )
    if modules[0][1]:
        raise Unsupported(f"modules.json: the Transformer is in {modules[0][1]!r}; it must be in the checkpoint's root")
    transformer = _transformer(folder)
    prompts, default_prompt = _prompts(folder)
    dimensions = _pooling(folder, modules[1][1], prompts)
    for kind, path in modules[2:]:
        if kind == "Dense":
            dimensions = _dense(folder, path, dimensions)
    return Checkpoint(
        dimensions=dimensions,
        normalize=kinds[-1] == "Normalize",
        max_tokens=transformer.get("max_seq_length"),
        max_positions=_positions(trunk),
        padding_token=_padding_token(trunk),
        lower_case=bool(transformer.get("do_lower_case", False)),
        prompts=prompts,
        default_prompt=default_prompt,
    )


def _order(dense: int) -> list[str]:
    return ["Transformer", "Pooling", *["Dense"] * dense]


def _module(entry: dict[str, Any]) -> tuple[str, str]:
    kind, path = str(entry.get("type")), str(entry.get("path", ""))
    for name, types in (("Transformer", TRANSFORMER), ("Pooling", POOLING), ("Dense", DENSE), ("Normalize", NORMALIZE)):
        if kind in types:
            return name, path
    if not kind.startswith("sentence_transformers."):
        raise RemoteCodeRefused(
            f"modules.json: {kind} is code of the repository; only modules of sentence-transformers are served"
        )
    raise Unsupported(f"modules.json: the module {kind} is not served")


def _transformer(folder: Path) -> dict[str, Any]:
    name = next((name for name in TRANSFORMER_CONFIGS if (folder / name).is_file()), None)
    if name is None:
        return {}
    config = _object(folder, name)
    for field, neutral in TRANSFORMER_DEFAULTS.items():
        value = config.get(field)
        if value is not None and value not in neutral:
            raise Unsupported(f"{name}: {field} is {json.dumps(value)[:200]}, which is not served")
    modalities = config.get("modality_config")
    if modalities is not None and set(modalities) != {"text"}:
        raise Unsupported(
            f"{name}: modality_config has {', '.join(modalities)}; only text, without a chat template, is served"
        )
    return config


def _pooling(folder: Path, path: str, prompts: dict[str, str]) -> int:
    name = f"{path}/config.json"
    config = _object(folder, name)
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for field, mode in LEGACY_POOLING_MODES.items() if config.get(field)] or ["mean"]
    elif isinstance(modes, str):
        modes = [modes]
    if len(modes) != 1 or modes[0] not in POOLING_MODES:
        raise Unsupported(
            f"{name}: pooling_mode is {', '.join(modes)}; served is one of: {', '.join(sorted(POOLING_MODES))}"
        )
    if not config.get("include_prompt", True) and any(prompts.values()):
        raise Unsupported(
            f"{name}: include_prompt is false and there are prompts; pooling around a prompt is not served"
        )
    width = config.get("embedding_dimension", config.get("word_embedding_dimension"))
    if not isinstance(width, int):
        raise Unsupported(f"{name}: embedding_dimension is missing")
    return width


def _dense(folder: Path, path: str, width: int) -> int:
    name = f"{path}/config.json"
    config = _object(folder, name)
    for field, neutral in (
        ("use_residual", (False, None)),
        ("module_input_name", ("sentence_embedding", None)),
        ("module_output_name", ("sentence_embedding", None)),
    ):
        if config.get(field) not in neutral:
            raise Unsupported(f"{name}: {field} is {config[field]!r}, which is not served")
    # sentence-transformers takes Tanh where nothing is said, vLLM nothing
    activation = str(config.get("activation_function"))
    if not activation.startswith("torch.nn.modules.") or activation.rpartition(".")[2] not in ACTIVATIONS:
        raise Unsupported(
            f"{name}: activation_function is {activation}; served are torch's {', '.join(sorted(ACTIVATIONS))}"
        )
    if config.get("in_features") != width:
        raise Unsupported(f"{name}: in_features is {config.get('in_features')}, and the module before has {width}")
    out = config.get("out_features")
    if not isinstance(out, int):
        raise Unsupported(f"{name}: out_features is missing")
    shapes = _shapes(folder, f"{path}/model.safetensors")
    expected = {"linear.weight": [out, width]} | ({"linear.bias": [out]} if config.get("bias", True) else {})
    if shapes != expected:
        raise Unsupported(f"{path}/model.safetensors: holds {shapes}; expected is {expected}")
    return out


def _shapes(folder: Path, name: str) -> dict[str, list[int]]:
    if not (folder / name).is_file():
        raise SourceFileNotFound(f"{name} is missing: vLLM would leave out the module without a word")
    try:
        with safe_open(folder / name, framework="numpy") as tensors:
            return {key: list(tensors.get_slice(key).get_shape()) for key in sorted(tensors.keys(), reverse=True)}
    except SafetensorError as error:
        raise Unsupported(f"{name} is no safetensors file: {error}") from None


def _prompts(folder: Path) -> tuple[dict[str, str], str | None]:
    name = "config_sentence_transformers.json"
    config = _object(folder, name) if (folder / name).is_file() else {}
    # sentence-transformers knows these two even where the checkpoint does not
    prompts = {"query": "", "document": ""} | {key: text or "" for key, text in (config.get("prompts") or {}).items()}
    default = config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise Unsupported(f"{name}: default_prompt_name is {default!r}, and there is no such prompt")
    return prompts, default


def _positions(trunk: dict[str, Any]) -> int | None:
    positions = trunk.get("max_position_embeddings")
    if not isinstance(positions, int) or positions < 1:
        return None
    padding = _padding_token(trunk)
    return positions if padding is None else positions - padding - 1


def _padding_token(trunk: dict[str, Any]) -> int | None:
    """Return the padding token of a trunk that numbers positions from behind it: RoBERTa and its kin."""
    return int(trunk.get("pad_token_id", 1)) if trunk.get("model_type") in ("roberta", "xlm-roberta") else None


def _object(folder: Path, name: str) -> dict[str, Any]:
    value = _json(folder, name)
    if not isinstance(value, dict):
        raise Unsupported(f"{name}: holds no JSON object")
    return value


def _json(folder: Path, name: str) -> Any:
    try:
        return json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SourceFileNotFound(f"{name} is missing: the checkpoint is not in sentence-transformers format") from None
    except ValueError as error:
        raise Unsupported(f"{name}: is no JSON: {error}") from None
