"""The checkpoint format of sentence-transformers, with one vector per text: what is read of it, and refused.

vLLM reads the same files, but skips what it does not know: a pooling mode becomes another one, a residual connection or an
activation is left out, and nothing is logged. So everything that decides the result is checked here, by prep and again by the
processor. Neither torch nor vLLM is imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from encoder_plugins.backbones.config_checks import check_head_size, head_size
from encoder_plugins.errors import RemoteCodeRefused, SourceFileNotFound, Unsupported
from encoder_plugins.families.embedding.config import EmbeddingConfig, Similarity, padding_token, positions_of_texts
from encoder_plugins.families.retrieval import dense as dense_modules
from encoder_plugins.families.retrieval.settings import ARGUMENTS, transformer_config, without_trust
from encoder_plugins.plugin import Accelerator
from encoder_plugins.prep.checkpoint import EngineSettings, Listing, Selection, link_files
from encoder_plugins.prep.checkpoint_files import (
    MODULES,
    in_folder,
    is_pickle,
    module_folders,
    select_folders,
)
from encoder_plugins.prep.checkpoint_json import integer, read_json, read_object, refusal, shown

CONFIG, LIBRARY = "config.json", "config_sentence_transformers.json"
# fields with the width of an encoder's rows; the first one is DistilBERT's own
WIDTHS = ("dim", "hidden_size")

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

# those that are served, and vLLM's names for them
POOLING_MODES: Mapping[str, str] = MappingProxyType({"cls": "CLS", "mean": "MEAN", "lasttoken": "LAST"})
LEGACY_POOLING_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

# settings of the Transformer module that change the result and that are not done here, with the value that changes nothing
TRANSFORMER_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "transformer_task": ("feature-extraction",),
    "processing_kwargs": ({},),
    **dict.fromkeys(ARGUMENTS, ({},)),
    "tokenizer_name_or_path": (),
    "module_output_name": ("token_embeddings",),
    "query_expansion": (),
    "query_length": (),
    "document_length": (),
}
# what Pooling makes, and Normalize is applied to
VECTOR = "sentence_embedding"
# the library takes the cosine where a checkpoint names none of these
SIMILARITIES: tuple[Similarity, ...] = ("cosine", "dot", "euclidean", "manhattan")


class EmbeddingCheckpoint:
    """Checkpoints in sentence-transformers format; ``encoder_plugins.prep.checkpoint.Checkpoint`` says what each part is for."""

    # sentence-transformers can be configured to run the code of a checkpoint; the modules that are served stay those above
    runs_code = True

    def read(self, folder: Path) -> EmbeddingConfig:
        """Read and check the configuration of the checkpoint in ``folder``; a subclass checks its encoder first.

        Raises:
            Unsupported: It needs something that is not served; the message names file and field.
            SourceFileNotFound: A file of the format is missing.
        """
        return read(folder)

    def files(self, listing: Listing) -> Selection:
        """Select the root's files and those of each module's folder.

        Raises:
            SourceFileNotFound: modules.json is missing.
            Unsupported: The checkpoint is of another format, or has only ONNX weights, or an adapter.
        """
        files = list(listing)
        paths = {file.path for file in files}
        modules = listing.read(MODULES)
        if modules is None:
            raise _other_format(paths)
        root = in_folder(files, "")
        if any(file.path.startswith("adapter_") for file in root):
            raise Unsupported("the checkpoint has an adapter (adapter_config.json): merge it into the weights")
        loadable = any(file.path.endswith(".safetensors") or is_pickle(file) for file in files)
        if not loadable and (onnx := sorted(path for path in paths if path.endswith(".onnx"))):
            raise Unsupported(f"the checkpoint has weights as ONNX only ({onnx[0]}); needed is model.safetensors")
        return select_folders(files, module_folders(modules))

    def check(self, folder: Path, auxiliary: Mapping[str, Path]) -> None:
        """Refuse a checkpoint that would be served differently from what sentence-transformers computes."""
        if auxiliary:
            raise Unsupported(
                f"a sentence-transformers checkpoint needs no auxiliary repository: {', '.join(auxiliary)}"
            )
        if not (folder / CONFIG).is_file():
            # which is why it is not in the root
            _require_root(read_modules(folder))
        self.read(folder)

    def convert(self, folder: Path, auxiliary: Mapping[str, Path], target: Path) -> None:
        """Give the engine the published files."""
        del auxiliary
        link_files(folder, target)

    def packs_texts(self, folder: Path) -> bool:
        """Return whether the engine takes several texts in one prompt: whether an artifact's model knows token marks."""
        del folder
        return False

    def engine_settings(self, folder: Path, accelerator: Accelerator) -> EngineSettings:
        """Return what an artifact's model folder decides about the engine.

        Raises:
            NotServable: vLLM's attention has no kernel for the head size on this accelerator.
        """
        check_head_size(head_size(read_object(folder, CONFIG)), accelerator)
        settings = self.read(folder)
        known = [limit for limit in (settings.max_tokens, settings.max_positions) if limit is not None]
        longest = min(known, default=None)
        return EngineSettings(
            max_model_len=longest,
            batch_tokens=longest or 0,
            # vLLM reads the modules, too, but takes the last token where none of the modes that it knows is set
            arguments=(
                "--no-enable-prefix-caching",
                "--pooler-config",
                json.dumps({"seq_pooling_type": POOLING_MODES[settings.pooling]}),
            ),
        )


def read(folder: Path, *, residual: bool = False, own_prompts: bool = False) -> EmbeddingConfig:
    """Read and check the modules of a checkpoint, and the sizes in its config.json.

    Args:
        folder: The checkpoint.
        residual: Whether Dense modules may have a residual branch.
        own_prompts: Whether requests may have prompts of their own.

    Raises:
        Unsupported: It needs something that is not served; the message names file and field.
        SourceFileNotFound: A file of the format is missing.
    """
    config = read_object(folder, CONFIG)
    _require_heads(config)
    modules = read_modules(folder)
    kinds = [kind for kind, _ in modules]
    expected = _order(kinds.count("Dense"))
    # once more changes nothing: a model that had the module was given it again when it was trained further
    if kinds != [*expected, *["Normalize"] * kinds.count("Normalize")]:
        raise Unsupported(
            f"{MODULES}: {' > '.join(kinds)}; supported: Transformer > Pooling [> Dense ...] [> Normalize]"
        )
    _require_root(modules)
    transformer = _transformer(folder)
    library = read_object(folder, LIBRARY) if (folder / LIBRARY).is_file() else {}
    prompts, default_prompt = _prompts(library)
    dimensions, pooling = _pooling(folder, modules[1][1], prompted=own_prompts or any(prompts.values()))
    # the library pools rows of any width, whatever the module says
    dimensions = next((size for name in WIDTHS if isinstance(size := config.get(name), int)), dimensions)
    for kind, path in modules[2:]:
        if kind == "Dense":
            dimensions = dense_modules.read(folder, path, dimensions, residual=residual).outputs
        else:
            _check_normalize(folder, path)
    return EmbeddingConfig(
        dimensions=dimensions,
        pooling=pooling,
        normalize=kinds[-1] == "Normalize",
        max_tokens=transformer.get("max_seq_length"),
        max_positions=positions_of_texts(config),
        padding_token=padding_token(config),
        lower_case=bool(transformer.get("do_lower_case", False)),
        prompts=prompts,
        default_prompt=default_prompt,
        truncate_dim=None if library.get("truncate_dim") is None else integer(LIBRARY, library, "truncate_dim"),
        similarity=next((name for name in SIMILARITIES if library.get("similarity_fn_name") == name), "cosine"),
    )


def _require_root(modules: Sequence[tuple[str, str]]) -> None:
    """Refuse a Transformer in a folder of its own, as the library's first versions wrote it."""
    for kind, path in modules:
        if kind == "Transformer" and path:
            raise Unsupported(f"{MODULES}: the Transformer is in {path!r}; it must be in the checkpoint's root")


def architecture(config: Mapping[str, Any]) -> str:
    """Return the only architecture of a config.json; empty where there are several or none."""
    architectures = config.get("architectures") or []
    return str(architectures[0]) if isinstance(architectures, list) and len(architectures) == 1 else ""


def _require_heads(config: dict[str, Any]) -> None:
    """Refuse sizes that no model can have."""
    for name in ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size"):
        if name in config:
            integer(CONFIG, config, name)
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if hidden and heads and "head_dim" not in config and hidden % heads:
        raise Unsupported(f"{CONFIG}: num_attention_heads is {heads}, which does not divide hidden_size {hidden}")


def _other_format(paths: set[str]) -> Unsupported | SourceFileNotFound:
    """Return the error for a checkpoint without modules.json, naming its format where that is known."""
    if "gliner_config.json" in paths:
        return Unsupported(
            "gliner_config.json: this is a GLiNER checkpoint; the plugins deberta_gliner, mmbert_gliner and mt5_gliner serve such"
        )
    return SourceFileNotFound(f"{MODULES} is missing: the checkpoint is not in sentence-transformers format")


def read_modules(folder: Path) -> list[tuple[str, str]]:
    """Return kind and folder of each module; raises Unsupported for kinds that are not served."""
    modules = read_json(folder, MODULES)
    if not isinstance(modules, list) or not all(isinstance(entry, dict) for entry in modules):
        raise Unsupported(f"{MODULES} is not a list of modules")
    return [_module(entry) for entry in modules]


def dense_folders(folder: Path) -> list[str]:
    """Return the folder of each Dense module, in order; raises Unsupported as ``read_modules`` does."""
    return [path for kind, path in read_modules(folder) if kind == "Dense"]


def _order(dense: int) -> list[str]:
    return ["Transformer", "Pooling", *["Dense"] * dense]


def _module(entry: dict[str, Any]) -> tuple[str, str]:
    kind, path = str(entry.get("type")), str(entry.get("path", ""))
    for name, types in (("Transformer", TRANSFORMER), ("Pooling", POOLING), ("Dense", DENSE), ("Normalize", NORMALIZE)):
        if kind in types:
            return name, path
    if kind.startswith("pylate."):
        raise Unsupported(
            f"{MODULES}: {kind} makes this a PyLate checkpoint, of one vector per token; moderncolbert serves those on"
            " ModernBERT, colbert on BERT and XLM-RoBERTa, and lfm2_colbert on LFM2"
        )
    if kind.endswith(".StaticEmbedding"):
        raise Unsupported(
            f"{MODULES}: {kind} looks vectors up and has no encoder; that needs no engine, and is not supported"
        )
    if not kind.startswith("sentence_transformers."):
        raise RemoteCodeRefused(
            f"{MODULES}: {kind} is code of the repository; only modules of sentence-transformers are supported"
        )
    raise Unsupported(f"{MODULES}: the module {kind} is not supported")


def _transformer(folder: Path) -> dict[str, Any]:
    name, config = transformer_config(folder)
    for field, neutral in TRANSFORMER_DEFAULTS.items():
        value = without_trust(field, config.get(field))
        if value is not None and value not in neutral:
            raise Unsupported(f"{name}: {field} is {json.dumps(value)[:200]}, which is not supported")
    if config.get("max_seq_length") is not None:
        integer(name, config, "max_seq_length")
    modalities = config.get("modality_config")
    if modalities is not None and not (isinstance(modalities, dict) and set(modalities) == {"text"}):
        raise Unsupported(
            f"{name}: modality_config is {shown(modalities)}; only text, without a chat template, is served"
        )
    return config


def _pooling(folder: Path, path: str, *, prompted: bool) -> tuple[int, str]:
    name = f"{path}/config.json"
    config = read_object(folder, name)
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for field, mode in LEGACY_POOLING_MODES.items() if config.get(field)] or ["mean"]
    elif not isinstance(modes, list):
        modes = [modes]
    if len(modes) != 1 or str(modes[0]) not in POOLING_MODES:
        raise Unsupported(
            f"{name}: pooling_mode is {', '.join(map(str, modes))}; supported: {', '.join(sorted(POOLING_MODES))}"
        )
    if prompted and not config.get("include_prompt", True):
        raise Unsupported(
            f"{name}: include_prompt is false, and texts may have prompts; pooling around a prompt is not supported"
        )
    width = config.get("embedding_dimension", config.get("word_embedding_dimension"))
    if not isinstance(width, int):
        raise Unsupported(f"{name}: embedding_dimension is missing")
    return width, modes[0]


def _check_normalize(folder: Path, path: str) -> None:
    """Refuse a Normalize module that leaves the vector as it is: one of rows, which come before it."""
    name = f"{path}/config.json"
    config = read_object(folder, name) if (folder / name).is_file() else {}
    for field, unset in (("module_input_name", VECTOR), ("module_output_name", None)):
        if (value := config.get(field, unset)) not in (VECTOR, unset):
            raise refusal(name, field, value, [VECTOR])


def _prompts(library: Mapping[str, Any]) -> tuple[dict[str, str], str | None]:
    given = library.get("prompts") or {}
    if not isinstance(given, dict):
        raise Unsupported(f"{LIBRARY}: prompts is {shown(given)}; expected texts by name")
    for key, text in given.items():
        if text is not None and not isinstance(text, str):
            raise Unsupported(f"{LIBRARY}: prompts: {key} is {shown(text)}; expected a text")
    # sentence-transformers knows these two even where the checkpoint does not
    prompts = {"query": "", "document": ""} | {key: text or "" for key, text in given.items()}
    default = library.get("default_prompt_name")
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise Unsupported(f"{LIBRARY}: default_prompt_name is {default!r}, and there is no such prompt")
    return prompts, default
