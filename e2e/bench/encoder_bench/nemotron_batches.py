"""Nemotron ColEmbed in batches, for the library's side of a comparison: the recorder's own model, with padding on the right.

The published class is Python code of the checkpoint; what is measured is its mathematics on transformers' own Qwen3-VL, which the
recorder computes one page at a time. Runs in the reference environment only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from encoder_plugins.models.nemotron_colembed.reference import Mathematics


class Batches(Mathematics):
    """What `encoder_bench.visual_peers` calls: a processor, and a model that takes what the processor made."""

    def __init__(self, checkpoint: Path) -> None:
        super().__init__(checkpoint)
        self._processor.tokenizer.padding_side = "right"

    @property
    def model(self) -> Batches:
        """Itself: it takes batches as it is called."""
        return self

    @property
    def processor(self) -> Batches:
        """Itself: it makes the batches."""
        return self

    def to(self, *where: Any) -> Batches:
        """Move the weights to a device and a dtype."""
        self._model.to(*where)
        return self

    def eval(self) -> Batches:
        """Return itself: the weights are loaded for inference."""
        return self

    def process_queries(self, texts: Sequence[str]) -> Any:
        """Return what the model gets of queries."""
        contents = [[{"type": "text", "text": self._processing.query(text)}] for text in texts]
        return self._padded(contents, {})

    def process_images(self, images: Sequence[Image.Image]) -> Any:
        """Return what the model gets of pages without a text."""
        text = {"type": "text", "text": self._processing.passage("")}
        return self._padded([[{"type": "image", "image": image}, text] for image in images], {"images": list(images)})

    def _padded(self, contents: Sequence[Any], images: dict[str, Any]) -> Any:
        turns = [
            self._processor.tokenizer.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
            )
            for content in contents
        ]
        return self._processor(text=turns, **images, padding=True, return_tensors="pt")

    def __call__(self, **inputs: Any) -> torch.Tensor:
        """Return rows `[batch, longest, dimensions]`; those of padding are zeros."""
        real, positions = inputs["attention_mask"], None
        if "image_grid_thw" in inputs:
            positions, _ = self._model.get_rope_index(
                inputs["input_ids"],
                mm_token_type_ids=inputs["mm_token_type_ids"],
                image_grid_thw=inputs["image_grid_thw"],
                attention_mask=real,
            )
        pixels = inputs.get("pixel_values")
        hidden = self._model(
            input_ids=inputs["input_ids"],
            # every token attends to every real one: a mask of this form is taken as it is
            attention_mask=real[:, None, None, :].bool().expand(-1, 1, real.shape[1], -1),
            position_ids=positions,
            pixel_values=None if pixels is None else pixels.to(self._model.dtype),
            image_grid_thw=inputs.get("image_grid_thw"),
            use_cache=False,
        ).last_hidden_state
        rows: torch.Tensor = torch.nn.functional.normalize(hidden, dim=-1) * real.unsqueeze(-1)
        return rows
