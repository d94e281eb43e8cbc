"""The OpenAPI document of each plugin, which `make lint` compares with the committed one."""

from __future__ import annotations

from typing import Any

import pytest

from encoder_plugins import catalog
from encoder_plugins.plugin import resolve
from encoder_plugins.serving.http import openapi
from encoder_plugins.serving.limits import defaults


def fields(schemas: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a request: of what is in ``data`` where it has that."""
    found: dict[str, Any] = schemas[body["$ref"].rpartition("/")[2]]["properties"]
    return fields(schemas, found["data"]) if "data" in found else found


@pytest.mark.parametrize("name", list(catalog.plugins()))
def test_an_answer_can_be_bytes_where_the_request_can_choose_them(name: str) -> None:
    plugin = catalog.get(name)
    found = openapi.document(plugin, resolve(plugin.processor).schemas, defaults(plugin))
    for path, operations in found["paths"].items():
        operation = operations["post"]
        body = operation["requestBody"]["content"]["application/json"]["schema"]
        encodings = fields(found["components"]["schemas"], body).get("encoding", {}).get("enum", [])
        expected = {"application/json"} | ({"application/octet-stream"} if "bytes" in encodings else set())
        assert set(operation["responses"]["200"]["content"]) == expected, path
