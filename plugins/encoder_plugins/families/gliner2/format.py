"""The checkpoint format of GLiNER2's span models: one object for each encoder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from encoder_plugins.errors import SourceFileNotFound, Unsupported
from encoder_plugins.families.gliner2 import checkpoint
from encoder_plugins.families.gliner2.checkpoint import CONFIG, ENCODER_FOLDER, EncoderSpec
from encoder_plugins.plugin import Accelerator
from encoder_plugins.prep.checkpoint import EngineSettings, Listing, Selection
from encoder_plugins.prep.checkpoint_files import in_folder, select_folders
from encoder_plugins.prep.checkpoint_json import integer, parse_json, read_object


class Gliner2Checkpoint:
    """GLiNER2 checkpoints on one encoder; ``encoder_plugins.prep.checkpoint.Checkpoint`` says what each part is for."""

    runs_code = False

    def __init__(self, spec: EncoderSpec) -> None:
        self.spec = spec

    def files(self, listing: Listing) -> Selection:
        """Select the root's weights, configuration and tokenizer, and the encoder's configuration.

        Raises:
            SourceFileNotFound: A configuration is missing.
            Unsupported: The checkpoint is of another format, or has an adapter.
        """
        paths = {file.path for file in listing}
        if CONFIG not in paths:
            if "gliner_config.json" in paths:
                raise Unsupported(
                    "gliner_config.json: this is a GLiNER checkpoint; the plugins deberta_gliner, mmbert_gliner and"
                    " mt5_gliner serve such"
                )
            raise SourceFileNotFound(f"{CONFIG} is missing: the checkpoint is not in GLiNER2's format")
        values = parse_json(CONFIG, listing.read(CONFIG) or b"")
        if not isinstance(values, dict):
            raise Unsupported(f"{CONFIG} is not a JSON object")
        checkpoint.parse(values)
        if any(file.path.startswith("adapter_") for file in in_folder(listing, "")):
            raise Unsupported("the checkpoint has an adapter (adapter_config.json): merge it into the weights")
        if checkpoint.ENCODER_CONFIG not in paths:
            raise SourceFileNotFound(
                f"{checkpoint.ENCODER_CONFIG} is missing, which the library reads the encoder from"
            )
        return select_folders(list(listing), ["", ENCODER_FOLDER])

    def check(self, folder: Path, auxiliary: Mapping[str, Path]) -> None:
        """Refuse, before its weights are downloaded, a checkpoint that would be served differently from the library."""
        # transformers, and a backbone's module: only where a checkpoint is checked
        from encoder_plugins.families.gliner2 import conversion

        del auxiliary
        checkpoint.read(folder)
        conversion.read_encoder(self.spec, checkpoint.encoder_config(folder, self.spec))

    def convert(self, folder: Path, auxiliary: Mapping[str, Path], target: Path) -> None:
        """Write the artifact's model folder from the checkpoint in ``folder``."""
        from encoder_plugins.families.gliner2 import conversion

        del auxiliary
        conversion.convert(self.spec, folder, target)

    def engine_settings(self, folder: Path, accelerator: Accelerator) -> EngineSettings:
        """Return what an artifact's model folder decides about the engine.

        Every token sees every other: no prefix of a prompt can be taken from another request, and no prompt be split, so
        that a step has to hold the longest.
        """
        del accelerator
        longest = integer(CONFIG, read_object(folder, CONFIG), "max_position_embeddings")
        return EngineSettings(
            max_model_len=longest,
            batch_tokens=longest,
            arguments=("--no-enable-prefix-caching", "--no-enable-chunked-prefill"),
        )
