"""The checkpoint format of GLiNER's span models: one object for each encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from encoder_plugins.backbones.config_checks import check_head_size, head_size
from encoder_plugins.errors import SourceFileNotFound, Unsupported
from encoder_plugins.families.gliner import checkpoint, stanza_words
from encoder_plugins.families.gliner.checkpoint import CONFIG, EncoderSpec
from encoder_plugins.families.gliner.parameters import choices
from encoder_plugins.parameters import Value
from encoder_plugins.plugin import Accelerator
from encoder_plugins.prep.checkpoint import EngineSettings, Listing, Selection, SourceFile
from encoder_plugins.prep.checkpoint_files import in_folder, is_pickle, select_folders
from encoder_plugins.prep.checkpoint_json import integer, parse_json, read_object


class GlinerCheckpoint:
    """GLiNER checkpoints on one encoder; ``encoder_plugins.prep.checkpoint.Checkpoint`` says what each part is for."""

    runs_code = False
    folders: ClassVar[tuple[str, ...]] = ("",)

    def __init__(self, spec: EncoderSpec, parameters: Mapping[str, Value] = MappingProxyType({})) -> None:
        self.spec = spec
        self._chosen = choices(parameters)

    def configured(self, parameters: Mapping[str, Value]) -> GlinerCheckpoint:
        """Return the same format for checkpoints whose configuration the user's parameters change."""
        return GlinerCheckpoint(self.spec, parameters)

    def files(self, listing: Listing) -> Selection:
        """Select the root's weights, configuration and tokenizer; the library loads nothing else of a span model.

        Raises:
            SourceFileNotFound: gliner_config.json is missing.
            Unsupported: The checkpoint is of another format, or has only ONNX weights, or an adapter.
        """
        paths = {file.path for file in listing}
        if CONFIG not in paths:
            raise _other_format(listing, paths)
        root = in_folder(listing, "")
        if any(file.path.startswith("adapter_") for file in root):
            raise Unsupported("the checkpoint has an adapter (adapter_config.json): merge it into the weights")
        loadable = any(file.path.endswith(".safetensors") or is_pickle(file) for file in root)
        if not loadable and (onnx := sorted(path for path in paths if path.endswith(".onnx"))):
            raise Unsupported(
                f"the checkpoint has weights as ONNX only ({onnx[0]}); needed is {checkpoint.WEIGHTS}, or pytorch_model.bin"
            )
        return select_folders(list(listing), self.folders)

    def auxiliary_files(self, name: str, listing: Sequence[SourceFile]) -> Selection | None:
        """Select the tokenizer of a language, with what expands its multi-word tokens; stanza publishes both as pickles.

        Raises:
            SourceFileNotFound: It is not there.
            Unsupported: It is of a language that is not served.
        """
        if not self._chosen.languages or stanza_words.code_of(name) is None:
            return None
        by_path = {file.path: file for file in listing}
        return Selection(files=(), pickles=tuple(by_path[path] for path in stanza_words.files(name, by_path)))

    def check(self, folder: Path, auxiliary: Mapping[str, Path]) -> None:
        """Refuse, before its weights are downloaded, a checkpoint that would be served differently from the library."""
        # transformers, and a backbone's module: only where a checkpoint is checked
        from encoder_plugins.families.gliner import conversion

        settings = checkpoint.read(folder, self._chosen)
        encoder = checkpoint.encoder_config(settings, auxiliary, self.spec)
        checkpoint.tokenizer_folder(settings, folder, auxiliary)
        conversion.read_encoder(self.spec, settings, encoder)
        conversion.check_words(stanza_words.separate(auxiliary, settings.languages)[0])

    def convert(self, folder: Path, auxiliary: Mapping[str, Path], target: Path) -> None:
        """Write the artifact's model folder from the checkpoint in ``folder``."""
        from encoder_plugins.families.gliner import conversion

        conversion.convert(self.spec, folder, auxiliary, target, self._chosen)

    def engine_settings(self, folder: Path, accelerator: Accelerator) -> EngineSettings:
        """Return what an artifact's model folder decides about the engine.

        Every token sees every other: no prefix of a prompt can be taken from another request, and no prompt be split, so
        that a step has to hold the longest.

        Raises:
            NotServable: vLLM's attention has no kernel for the head size on this accelerator.
        """
        config = read_object(folder, checkpoint.ENCODER_CONFIG)
        if self.spec.vllm_attention:
            check_head_size(head_size(config), accelerator)
        longest = integer(checkpoint.ENCODER_CONFIG, config, "max_position_embeddings")
        return EngineSettings(
            max_model_len=longest,
            batch_tokens=longest,
            arguments=("--no-enable-prefix-caching", "--no-enable-chunked-prefill"),
        )


def _other_format(listing: Listing, paths: set[str]) -> Unsupported | SourceFileNotFound:
    """Return the error for a checkpoint without gliner_config.json, naming its format where that is known."""
    content = listing.read("config.json") if "config.json" in paths else None
    config = parse_json("config.json", content) if content is not None else {}
    if isinstance(config, dict) and (config.get("model_type") == "extractor" or "counting_layer" in config):
        return Unsupported(
            'config.json: model_type is "extractor": this is a GLiNER2 checkpoint; the plugin deberta_gliner2 serves it'
        )
    if "modules.json" in paths:
        return Unsupported(
            "modules.json: this is a sentence-transformers checkpoint; the plugin sentence_transformer serves it"
        )
    return SourceFileNotFound(f"{CONFIG} is missing: the checkpoint is not in GLiNER's format")
