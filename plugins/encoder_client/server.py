"""What a server says about itself: its plugin, its limits, and the fields of its requests. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from encoder_client.errors import ArgumentError, InvalidAnswerError

OPENAPI = "/openapi.json"
MODELS = "/v1/models"
LIMITS = "x-encoder-limits"

# for a server that does not state its limits: below the defaults of every plugin
CAUTIOUS: Mapping[str, int] = {"body_bytes": 1 << 20, "texts": 32, "characters": 500_000, "documents": 100}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What a server answers.

    Attributes:
        plugin: The name of its plugin; None where the server does not state it.
        fields: The fields of ``data`` in ``POST /pooling``; None where the server does not state them.
        limits: What one request may contain, by name.
    """

    plugin: str | None = None
    fields: frozenset[str] | None = None
    limits: Mapping[str, int] = field(default_factory=lambda: CAUTIOUS)

    def limit(self, name: str) -> int | None:
        """Return a limit of one request; None where there is none."""
        return self.limits.get(name)

    def fields_for(self, *, labels: bool) -> frozenset[str]:
        """Return the fields of its requests; where it does not state them, a request with labels is one for entities."""
        if self.fields is not None:
            return self.fields
        return frozenset({"labels"} if labels else ())

    def require(self, name: str, *, argument: str) -> None:
        """Refuse an argument that the server's requests have no field for.

        Args:
            name: The field.
            argument: What the caller calls it.

        Raises:
            ArgumentError: There is no such field.
        """
        if self.fields is not None and name not in self.fields:
            raise ArgumentError(f"requests to the plugin {self.plugin} have no field {name}", param=argument)

    def require_kind(self, name: str, *, kind: str) -> None:
        """Refuse a server of another family, which is recognised by a field of its requests.

        Raises:
            ArgumentError: The server answers other requests.
        """
        if self.fields is not None and name not in self.fields:
            raise ArgumentError(f"the server runs the plugin {self.plugin}, which does not answer {kind}", param="url")


def described(content: bytes | bytearray) -> Server:
    """Return what the document at ``/openapi.json`` says.

    Raises:
        InvalidAnswerError: It is not JSON.
    """
    document = json_of(content)
    if not isinstance(document, dict):
        raise InvalidAnswerError(f"{OPENAPI} is not an OpenAPI document")
    limits = document.get(LIMITS)
    info = document.get("info")
    return Server(
        plugin=info.get("title") if isinstance(info, dict) else None,
        fields=_fields(document),
        limits=dict(limits) if isinstance(limits, dict) else CAUTIOUS,
    )


def json_of(content: bytes | bytearray) -> Any:
    """Return the JSON of an answer; raises InvalidAnswerError where it is none."""
    try:
        return json.loads(content)
    except ValueError as error:
        raise InvalidAnswerError(f"the answer is not JSON: {error}: {bytes(content[:100])!r}") from None


def _fields(document: dict[str, Any]) -> frozenset[str] | None:
    try:
        post = document["paths"]["/pooling"]["post"]
        envelope = _resolved(document, post["requestBody"]["content"]["application/json"]["schema"])
        return frozenset(_resolved(document, envelope["properties"]["data"])["properties"])
    except (KeyError, TypeError):
        return None


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    found: dict[str, Any] = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found
