"""The checkpoint format of visual retrievers: what its plugins share. Neither torch nor vLLM is imported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from encoder_plugins.backbones.config_checks import check_head_size, head_size
from encoder_plugins.errors import Unsupported
from encoder_plugins.families.vision.config import CONFIG, read_visual
from encoder_plugins.plugin import Accelerator
from encoder_plugins.prep.checkpoint import EngineSettings, Listing, Selection
from encoder_plugins.prep.checkpoint_files import in_folder, select_folders
from encoder_plugins.prep.checkpoint_json import read_object

# tokens of the longest text: a document's, where its pages have fewer
TEXT_TOKENS = 2_048
# tokens of an image's prompt beside those of the image, and more than enough
PROMPT_TOKENS = 64
# of vLLM's compilation
ENCODER_GRAPHS = {"cudagraph_mm_encoder": True}


class VisualFiles:
    """The files of a checkpoint, and what an artifact decides about the engine.

    Attributes:
        modalities: How many of each kind vLLM prepares for in a prompt.
        encoder_graphs: Whether vLLM captures the vision encoder as CUDA graphs on a GPU.
    """

    runs_code = False
    encoder_graphs = True
    modalities: Mapping[str, int] = MappingProxyType({"image": 1})

    def files(self, listing: Listing) -> Selection:
        """Select weights, configuration, tokenizer and image processor of the root.

        Raises:
            Unsupported: The checkpoint is an adapter.
        """
        files = list(listing)
        if any(file.path.startswith("adapter_") for file in in_folder(files, "")):
            raise Unsupported("the checkpoint is an adapter (adapter_config.json): merge it into the weights")
        return select_folders(files, ("",))

    def engine_settings(self, folder: Path, accelerator: Accelerator) -> EngineSettings:
        """Return what an artifact's model folder decides about the engine.

        A request is pooled at once, so that a step has to hold the largest image. Prompts do not begin alike, so that
        vLLM's cache of prefixes is of no use; its cache of processed images is gigabytes in each process, and ``Pixels`` keeps those that repeat.

        Raises:
            NotServable: vLLM's attention has no kernel for the head size on this accelerator.
        """
        text = read_object(folder, CONFIG)["text_config"]
        check_head_size(head_size(text), accelerator)
        longest = min(self.longest(folder), text["max_position_embeddings"])
        return EngineSettings(
            max_model_len=longest,
            batch_tokens=longest,
            arguments=(
                *("--no-enable-prefix-caching", "--no-enable-chunked-prefill"),
                *("--pooler-config", json.dumps({"task": "token_embed"})),
                *("--limit-mm-per-prompt", json.dumps(dict(self.modalities))),
                *("--mm-processor-cache-gb", "0"),
                *(
                    ("--compilation-config", json.dumps(ENCODER_GRAPHS))
                    if self.encoder_graphs and accelerator == "nvidia"
                    else ()
                ),
            ),
        )

    def longest(self, folder: Path) -> int:
        """Return the tokens of the longest prompt of an artifact's model folder."""
        return max(TEXT_TOKENS, read_visual(folder).bounds.most_tokens + PROMPT_TOKENS)
