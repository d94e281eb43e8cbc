"""Nemotron ColEmbed checkpoints as NVIDIA publishes them. Neither torch nor vLLM is imported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from encoder_plugins.backbones.config_checks import check_head_size, head_size
from encoder_plugins.errors import Unsupported
from encoder_plugins.families.retrieval.checkpoint import read_served
from encoder_plugins.families.vision.config import CONFIG
from encoder_plugins.models.nemotron_colembed.published import read, read_processing
from encoder_plugins.plugin import Accelerator
from encoder_plugins.prep.checkpoint import EngineSettings, Listing, Selection
from encoder_plugins.prep.checkpoint_files import select_folders
from encoder_plugins.prep.checkpoint_json import read_object


class NemotronCheckpoint:
    """The checkpoint format; ``encoder_plugins.prep.checkpoint.Checkpoint`` describes each method."""

    runs_code = True

    def files(self, listing: Listing) -> Selection:
        """Select weights, configuration, tokenizer, image processor and code of the root."""
        # the configuration names code, which only the recorder runs, and only with permission
        return replace(select_folders(list(listing), ("",)), code_is_optional=True)

    def check(self, folder: Path, auxiliary: Mapping[str, Path]) -> None:
        """Refuse, before its weights are downloaded, a checkpoint that would be served differently from the published code."""
        if auxiliary:
            raise Unsupported(f"this format needs no auxiliary repository: {', '.join(auxiliary)}")
        read(folder)
        read_processing(folder)

    def convert(self, folder: Path, auxiliary: Mapping[str, Path], target: Path) -> None:
        """Write the artifact's model folder from the checkpoint in ``folder``."""
        del auxiliary
        # torch and transformers: only where a checkpoint is converted
        from encoder_plugins.models.nemotron_colembed import conversion

        conversion.convert(read(folder), read_processing(folder), folder, target)

    def engine_settings(self, folder: Path, accelerator: Accelerator) -> EngineSettings:
        """Return what an artifact's model folder decides about the engine.

        Attention goes in both directions, so that a prompt is one step. A document with an image has fewer tokens than one without.

        Raises:
            NotServable: vLLM's attention has no kernel for the head size on this accelerator.
        """
        text = read_object(folder, CONFIG)["text_config"]
        check_head_size(head_size(text), accelerator)
        longest = min(read_served(folder).most_tokens, text["max_position_embeddings"])
        return EngineSettings(
            max_model_len=longest,
            batch_tokens=longest,
            arguments=(
                *("--no-enable-prefix-caching", "--no-enable-chunked-prefill"),
                *("--pooler-config", json.dumps({"task": "token_embed"})),
                *("--limit-mm-per-prompt", json.dumps({"image": 1, "video": 0})),
                *("--mm-processor-cache-gb", "0"),
            ),
        )


CHECKPOINT = NemotronCheckpoint()
