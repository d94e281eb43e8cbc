"""How cases of visual retrievers are sent, and how close answers must be: as those of text retrievers, with images.

Standard library and numpy only: prep chooses cases with it, and the parity Job runs it, without torch or vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from encoder_plugins.artifact.cases import Inputs
from encoder_plugins.families.retrieval.parity import MultiVectors
from encoder_plugins.families.vision import cases as visual_cases
from encoder_plugins.parity.protocol import Case, Variant


class VisualMultiVectors(MultiVectors):
    """See ``MultiVectors``.

    Args:
        captions: Whether an image may have a text.
    """

    def __init__(self, *, captions: bool = False) -> None:
        super().__init__()
        self._captions = captions

    def cases(self, checkpoint: Path, inputs: Inputs) -> list[Case]:
        """Return the built-in cases, and the user's own."""
        del checkpoint
        built_in = visual_cases.built_in(captions=self._captions)
        return [*built_in, *visual_cases.user_cases(inputs, built_in, captions=self._captions)]

    def group(self, case: Case, variant: Variant) -> tuple[object, ...]:
        """Return what cases must share to be sent in one request: images go with images."""
        return (*super().group(case, variant), case["image"] is None)

    def body(self, together: Sequence[Case], variant: Variant) -> dict[str, Any]:
        """Return the request body for cases of one group."""
        first = together[0]
        if first["documents"] is not None or first["image"] is None:
            return super().body(together, variant)
        images = [case["image"] for case in together]
        if any(case["text"] is not None for case in together):
            items = [{"image": case["image"], **({"text": case["text"]} if case["text"] else {})} for case in together]
            return {"data": {"inputs": items, "encoding": variant.encoding}}
        data: dict[str, Any] = {"image": images[0]} if len(images) == 1 else {"images": images}
        return {"data": {**data, "encoding": variant.encoding}}


PARITY = VisualMultiVectors()
