"""How sauerkrautlm-colpali loads ColLFM2. Runs in the library's environment only.

The library fetches the base with its weights, which those of the checkpoint then replace, and needs FlashAttention. Here
the base is made from its configuration alone, with PyTorch's attention.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from sauerkrautlm_colpali import ColLFM2, ColLFM2Processor
from sauerkrautlm_colpali.models.lfm2.collfm2 import modeling_collfm2
from transformers import AutoModelForImageTextToText, Lfm2VlConfig

from encoder_plugins.errors import Unsupported
from encoder_plugins.families.vision.recording import ColpaliLibrary, ColpaliRecorder, check_loaded, loading
from encoder_plugins.models.collfm2.published import BASE_TYPE, base_config


class Model(ColLFM2):  # type: ignore[misc]
    """The library's own, which keeps what its loading left out."""

    report: Mapping[str, Any]

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """See ``torch.nn.Module``."""
        found = super().load_state_dict(state_dict, strict=strict, assign=assign)
        self.report = {"missing_keys": found.missing_keys, "unexpected_keys": found.unexpected_keys}
        return found


def load(checkpoint: Path, auxiliary: Mapping[str, Path]) -> ColpaliLibrary:
    """Load a checkpoint.

    Raises:
        Unsupported: The library cannot load it, or would leave out a part of it.
    """
    config = Lfm2VlConfig.from_dict({**base_config(checkpoint, auxiliary), "model_type": BASE_TYPE})
    base = mock.Mock()
    base.from_pretrained = lambda *_, **options: AutoModelForImageTextToText.from_config(
        config, dtype=options["torch_dtype"], attn_implementation="sdpa"
    )
    if not (checkpoint / "model.safetensors").is_file():
        raise Unsupported("sauerkrautlm-colpali would leave its weights random: there is no model.safetensors")
    # what the library prints would be taken for the recorder's output
    with (
        loading(),
        redirect_stdout(io.StringIO()),
        mock.patch.object(modeling_collfm2, "AutoModelForImageTextToText", base),
    ):
        model = Model.from_pretrained(str(checkpoint))
        processor = ColLFM2Processor.from_pretrained(str(checkpoint), local_files_only=True)
    check_loaded(model.report)
    if any(parameter.dtype != torch.bfloat16 for parameter in model.parameters()):
        raise Unsupported("sauerkrautlm-colpali loads a part of it in another type than bfloat16")
    return ColpaliLibrary(model, processor)


RECORDER = ColpaliRecorder(load)
