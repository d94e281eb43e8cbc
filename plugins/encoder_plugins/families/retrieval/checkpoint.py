"""The checkpoint format of retrievers of one vector per token: one object for each encoder.

Neither torch nor vLLM is imported here: prep and the start of serving use it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from encoder_plugins.backbones.config_checks import check_head_size, head_size
from encoder_plugins.errors import Unsupported
from encoder_plugins.families.retrieval import settings as published
from encoder_plugins.families.retrieval.config import KEY, RetrievalConfig
from encoder_plugins.families.retrieval.encoder_spec import EncoderSpec
from encoder_plugins.families.retrieval.library_format import LIBRARY
from encoder_plugins.families.retrieval.settings import CONFIG, Settings
from encoder_plugins.plugin import Accelerator
from encoder_plugins.prep.checkpoint import EngineSettings, Listing, Selection
from encoder_plugins.prep.checkpoint_files import (
    MODULES,
    in_folder,
    is_pickle,
    module_folders,
    select_folders,
)
from encoder_plugins.prep.checkpoint_json import parse_json, read_object


class MultiVectorCheckpoint:
    """Retrievers on one encoder; ``encoder_plugins.prep.checkpoint.Checkpoint`` describes each method."""

    runs_code = False

    def __init__(self, spec: EncoderSpec) -> None:
        self.spec = spec

    def files(self, listing: Listing) -> Selection:
        """Select the root's files and those of each module's folder.

        Raises:
            SourceFileNotFound: modules.json is missing, and the checkpoint is not in Stanford's format.
            Unsupported: The checkpoint is of another format, or has only ONNX weights, or an adapter.
        """
        files = list(listing)
        paths = {file.path for file in files}
        modules = listing.read(MODULES)
        if modules is None:
            content = listing.read(CONFIG) if CONFIG in paths else None
            config = parse_json(CONFIG, content) if content is not None else {}
            if not isinstance(config, dict) or not published.is_stanford(config):
                raise published.other_format(paths)
            self.spec.prefix(config)
        if any(file.path.startswith("adapter_") for file in in_folder(files, "")):
            raise Unsupported("the checkpoint has an adapter (adapter_config.json): merge it into the weights")
        loadable = any(file.path.endswith(".safetensors") or is_pickle(file) for file in files)
        if not loadable and (onnx := sorted(path for path in paths if path.endswith(".onnx"))):
            raise Unsupported(f"the checkpoint has weights as ONNX only ({onnx[0]}); needed is model.safetensors")
        if modules is not None:
            return select_folders(files, module_folders(modules))
        selected = select_folders(files, ("",))
        settings = [file for file in files if file.path == published.METADATA]
        return replace(selected, files=(*selected.files, *settings))

    def check(self, folder: Path, auxiliary: Mapping[str, Path]) -> None:
        """Refuse, before its weights are downloaded, a checkpoint that would be served differently from the library."""
        if auxiliary:
            raise Unsupported(f"this format needs no auxiliary repository: {', '.join(auxiliary)}")
        self.read(folder)

    def read(self, folder: Path) -> tuple[Any, Settings]:
        """Return the encoder's settings and those of everything else; raises what ``check`` does."""
        config = read_object(folder, CONFIG)
        self.spec.prefix(config)
        encoder = self.spec.read(config)
        settings = published.read(folder, encoder.hidden_size)
        longest = [*settings.lengths.values(), settings.expansion.length if settings.expansion else None]
        if (most := max((length for length in longest if length), default=0)) > encoder.max_tokens:
            where = LIBRARY if (folder / LIBRARY).is_file() else published.METADATA
            raise Unsupported(
                f"{where}: texts have up to {most} tokens, and the encoder only {encoder.max_tokens} positions"
            )
        fixed = settings.expansion is not None and settings.expansion.fixed
        # the library cuts at the tokenizer's limit what has no length of its own
        unlimited = settings.lengths["document"] is None or (settings.lengths["query"] is None and not fixed)
        if unlimited and (settings.tokenizer_limit or 0) > encoder.max_tokens:
            raise Unsupported(
                f"{published.transformer_config(folder)[0]}: max_seq_length is {settings.tokenizer_limit}, and the encoder has only"
                f" {encoder.max_tokens} positions"
            )
        return encoder, settings

    def convert(self, folder: Path, auxiliary: Mapping[str, Path], target: Path) -> None:
        """Write the artifact's model folder from the checkpoint in ``folder``."""
        del auxiliary
        # torch and transformers: only where a checkpoint is converted
        from encoder_plugins.families.retrieval import conversion

        encoder, settings = self.read(folder)
        conversion.convert(self.spec, encoder, settings, folder, target)

    def engine_settings(self, folder: Path, accelerator: Accelerator) -> EngineSettings:
        """Return what an artifact's model folder decides about the engine.

        Every token sees every other: no prefix of a prompt can be taken from another request, and no prompt be split, so
        that a step has to hold the longest.

        Raises:
            NotServable: vLLM's attention has no kernel for the head size on this accelerator.
        """
        config = read_object(folder, CONFIG)
        check_head_size(head_size(config), accelerator)
        longest = read_served(folder).most_tokens
        pooler = json.dumps({"task": "token_embed"})
        return EngineSettings(
            max_model_len=longest,
            batch_tokens=longest,
            arguments=("--no-enable-prefix-caching", "--no-enable-chunked-prefill", "--pooler-config", pooler),
        )


def read_served(folder: Path) -> RetrievalConfig:
    """Return what prep wrote into an artifact's config.json.

    Raises:
        Unsupported: The folder is not a model folder of this family.
    """
    values = read_object(folder, CONFIG).get(KEY)
    try:
        return RetrievalConfig.from_dict(values)  # type: ignore[arg-type]
    except (KeyError, TypeError) as error:
        raise Unsupported(f"{CONFIG}: {KEY} is not what prep writes: {error!r}; prepare the checkpoint") from error
