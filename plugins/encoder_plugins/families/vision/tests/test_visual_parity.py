"""How the parity check sends images to a server, beside texts."""

from __future__ import annotations

from typing import Any

from encoder_plugins.families.retrieval.parity import FLOAT
from encoder_plugins.families.vision.parity import PARITY, VisualMultiVectors

TEXT: dict[str, Any] = {"id": "t", "input_type": "document", "text": "a", "image": None, "documents": None}
CAPTIONS = VisualMultiVectors(captions=True)
IMAGE = {**TEXT, "id": "i", "text": None, "image": "AAAA"}
CAPTIONED = {**IMAGE, "text": "a page"}
SCORED = {**TEXT, "id": "s", "input_type": "query", "documents": ["b", {"image": "AAAA"}]}


def test_images_are_sent_with_images() -> None:
    assert PARITY.group(TEXT, FLOAT) != PARITY.group(IMAGE, FLOAT)
    assert PARITY.group(IMAGE, FLOAT) == PARITY.group({**IMAGE, "id": "j", "image": "BBBB"}, FLOAT)
    assert PARITY.group(SCORED, FLOAT) != PARITY.group({**SCORED, "id": "s2"}, FLOAT)


def test_a_request_has_texts_or_images() -> None:
    assert PARITY.body([TEXT], FLOAT) == {"data": {"text": "a", "input_type": "document", "encoding": "float"}}
    assert PARITY.body([IMAGE], FLOAT) == {"data": {"image": "AAAA", "encoding": "float"}}
    assert PARITY.body([IMAGE, IMAGE], FLOAT) == {"data": {"images": ["AAAA", "AAAA"], "encoding": "float"}}
    assert PARITY.body([SCORED], FLOAT) == {"data": {"query": "a", "documents": SCORED["documents"]}}
    # an image may have a text where the plugin has captions
    inputs = [{"image": "AAAA", "text": "a page"}, {"image": "AAAA"}]
    assert CAPTIONS.body([CAPTIONED, IMAGE], FLOAT) == {"data": {"inputs": inputs, "encoding": "float"}}


def test_captions_have_cases_where_the_plugin_has_them(tmp_path: Any) -> None:
    captioned = [
        [case["id"] for case in parity.cases(tmp_path, []) if case["image"] and case["text"]]
        for parity in (PARITY, CAPTIONS)
    ]
    assert captioned[0] == []
    assert captioned[1]
