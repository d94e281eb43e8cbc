"""The page of the HTTP API is made from OpenAPI documents: types in words, and requests that several plugins share once."""

from typing import Any

from encoder_platform import http_reference


def document(limit: int) -> dict[str, Any]:
    texts = {
        "anyOf": [{"type": "array", "items": {"$ref": "#/components/schemas/Text"}}, {"type": "null"}],
        "default": None,
    }
    data = {"type": "object", "properties": {"texts": texts}, "required": []}
    mode = {"description": "How | why.", "enum": ["a", "b"], "default": "a"}
    envelope = {"properties": {"data": {"$ref": "#/components/schemas/Data"}, "mode": mode}, "required": ["data"]}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Envelope"}}}}
    operation = {"summary": "Answer.", "requestBody": body, "responses": {"200": {}, "400": {"description": "No."}}}
    return {
        "paths": {path: {"post": operation} for path in ("/one", "/v1/one")},
        "components": {"schemas": {"Envelope": envelope, "Data": data, "Text": {"type": "string"}}},
        "x-encoder-limits": {"texts": limit},
    }


def test_a_page_has_routes_errors_limits_and_each_request_once() -> None:
    page = http_reference.page({"x": document(1000), "y": document(1000), "z": document(5)})
    assert "| `/one` | Answer. | all |" in page
    assert "| 400 | No. |" in page
    assert "| `texts` | 1,000; 5: `z` |" in page
    assert page.count("### ") == 1
    assert "### `/one`, `/v1/one` of `x`, `y`, `z`" in page
    assert "| `data.texts` | list of string |  |" in page
    assert '| `mode` | `"a"` or `"b"`, default `"a"` | How / why. |' in page
