"""What answers of Nemotron ColEmbed are compared with: the cases that the published code can compute."""

from __future__ import annotations

import base64
import struct
from pathlib import Path

from encoder_plugins.artifact.cases import Inputs
from encoder_plugins.families.vision import cases as visual_cases
from encoder_plugins.families.vision.parity import VisualMultiVectors
from encoder_plugins.models.nemotron_colembed.published import read, read_processing
from encoder_plugins.parity.protocol import Case

# tokens of a turn before an image, and more than enough
_BEFORE_IMAGE = 16
# of a PNG: the signature and the header's name and length stand before width and height
_SIZE_OF_PNG = slice(16, 24)


class NemotronMultiVectors(VisualMultiVectors):
    """See ``VisualMultiVectors``."""

    def __init__(self) -> None:
        super().__init__(captions=True)

    def cases(self, checkpoint: Path, inputs: Inputs) -> list[Case]:
        """Return the built-in cases whose images the published processor has room for, and the user's own.

        It counts the tokens of an image twice, and raises for one that it would cut: of most checkpoints none is.
        """
        bounds, most = read(checkpoint).bounds, read_processing(checkpoint).document_tokens

        def has_room(image: str) -> bool:
            tokens = bounds.tokens(*struct.unpack(">II", base64.b64decode(image)[_SIZE_OF_PNG]))
            return _BEFORE_IMAGE + 2 * tokens <= most

        built_in = visual_cases.built_in(captions=True)
        kept = [case for case in built_in if all(map(has_room, _images(case)))]
        return [*kept, *visual_cases.user_cases(inputs, built_in, captions=True)]


def _images(case: visual_cases.Case) -> list[str]:
    """Return the images of a case, those of its documents among them."""
    found = [each["image"] for each in case["documents"] or () if not isinstance(each, str)]
    return found if case["image"] is None else [case["image"], *found]


PARITY = NemotronMultiVectors()
