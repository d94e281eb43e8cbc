"""Documents with files among them."""

from __future__ import annotations

from typing import Any

import pytest

from encoder_plugins.families.vision.request import ImageFile, PdfFile, VisualTexts
from encoder_plugins.inputs.pdf import Pdf

TEXTS: dict[str, Any] = {"texts": ["a" * 10, "i"], "path": "documents[{}]", "kind": "document"}


@pytest.mark.parametrize(
    "files",
    [
        {"images": {1: ImageFile(path="documents[1].image")}},
        {"pdfs": {1: PdfFile(path="documents[1]", pdf=Pdf(pages=None, dpi=150))}},
    ],
)
def test_documents_with_files_stay_together(files: dict[str, Any]) -> None:
    texts = VisualTexts(**TEXTS, **files)
    assert texts.parts(1) == [texts]
    assert len(VisualTexts(**TEXTS).parts(1)) == 2
