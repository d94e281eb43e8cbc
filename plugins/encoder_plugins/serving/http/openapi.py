"""The OpenAPI document of a plugin, made from its routes and the types of their requests and responses.

`python -m encoder_plugins.serving.http.openapi [--check]` writes that of each plugin to `docs/openapi`; a server has its own at
``/openapi.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from encoder_plugins import catalog
from encoder_plugins.plugin import Plugin, Route, resolve
from encoder_plugins.serving.http.admission import ErrorBody
from encoder_plugins.serving.limits import defaults
from encoder_plugins.serving.processor import Schema

FOLDER = Path(__file__).parents[4] / "docs" / "openapi"

LIMITS = "x-encoder-limits"
"""The part of the document that holds the limits of this server; an extension, as the specification calls it."""

_REFERENCE = "#/components/schemas/{name}"
_ERRORS = {
    "400": "The request cannot be answered; `param` names the field.",
    "404": "The model, the adapter, or the path is not served here.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The content type is not application/json, or the body is encoded.",
    "431": "The headers are too large.",
    "500": "The request failed.",
    "503": "Too many concurrent requests; Retry-After says when to send it again.",
}


def document(plugin: Plugin, schemas: Mapping[str, Schema], limits: Mapping[str, int]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of ``plugin``.

    Args:
        plugin: The plugin.
        schemas: The types behind the ``schema`` of each of its routes.
        limits: What one request may contain, by name; clients that split long lists read them.
    """
    kinds = [ErrorBody]
    for route in plugin.routes:
        kinds += [schemas[route.schema].request, *schemas[route.schema].responses]
    _, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    return {
        "openapi": "3.1.0",
        "info": {"title": plugin.name, "summary": plugin.summary, "version": "1"},
        "paths": {route.path: {"post": _operation(route, schemas[route.schema])} for route in plugin.routes},
        "components": {"schemas": dict(sorted(components.items()))},
        LIMITS: dict(sorted(limits.items())),
    }


def _operation(route: Route, schema: Schema) -> dict[str, Any]:
    responses = [_json(kind) for kind in schema.responses]
    content = {"application/json": {"schema": responses[0] if len(responses) == 1 else {"anyOf": responses}}}
    if schema.binary:
        content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    errors = {
        status: {"description": text, "content": {"application/json": {"schema": _json(ErrorBody)}}}
        for status, text in _ERRORS.items()
    }
    return {
        "operationId": route.path.strip("/").replace("/", "_"),
        "summary": route.summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": _json(schema.request)}}},
        "responses": {"200": {"description": "The answer.", "content": content}, **errors},
    }


def _json(kind: Any) -> dict[str, Any]:
    (found,), _ = msgspec.json.schema_components([kind], ref_template=_REFERENCE)
    return found


def rendered(plugin: Plugin) -> str:
    """Return the document of ``plugin`` as it is committed."""
    found = document(plugin, resolve(plugin.processor).schemas, defaults(plugin))
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write the documents, or check them; return the exit status."""
    parser = argparse.ArgumentParser(description="Write the OpenAPI document of each plugin.")
    parser.add_argument("--check", action="store_true", help="fail when a file differs, and write nothing")
    check = parser.parse_args(arguments).check
    status = 0
    FOLDER.mkdir(exist_ok=True)
    for plugin in catalog.plugins().values():
        path, wanted = FOLDER / f"{plugin.name}.json", rendered(plugin)
        if path.is_file() and path.read_text(encoding="utf-8") == wanted:
            continue
        if check:
            print(f"{path} is out of date; run `make generate`", file=sys.stderr)
            status = 1
        else:
            path.write_text(wanted, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
