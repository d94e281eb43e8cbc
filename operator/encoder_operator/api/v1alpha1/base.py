"""Base class, rules and scalar types of the resource."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError

from encoder_operator import naming
from encoder_operator.validation.vllm_args import DENIED_ENVIRONMENT


def _qualified(pattern: str) -> Callable[[str], str]:
    """Return a check of a label's key: the API server can check none of those of a map, and the schema is large enough without that pattern."""

    def check(key: str) -> str:
        if not re.fullmatch(pattern, key):
            raise PydanticCustomError("key", "it is not a qualified name, such as example.com/name")
        return key

    return check


Accelerator = Literal["cpu", "nvidia"]

_QUANTITY = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"
Quantity = Annotated[
    Annotated[int, Field(ge=0)] | Annotated[str, StringConstraints(pattern=_QUANTITY, max_length=64)],
    Field(json_schema_extra={"x-kubernetes-int-or-string": True}),
]
IntOrPercent = Annotated[
    # of a Deployment, which has 32 bits for it
    Annotated[int, Field(ge=0, le=2**31 - 1)]
    | Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]?|100)%$", max_length=4)],
    Field(json_schema_extra={"x-kubernetes-int-or-string": True}),
]
Decimal = Annotated[str, StringConstraints(pattern=r"^-?[0-9]+(\.[0-9]+)?([eE]-?[0-9]+)?$", max_length=32)]
Name = Annotated[str, StringConstraints(pattern=naming.DNS_SUBDOMAIN, max_length=253)]
Namespace = Annotated[str, StringConstraints(pattern=naming.DNS_LABEL, max_length=naming.MAX_DNS_LABEL)]
# a path in a volume, so neither . nor anything that begins with ..
Key = Annotated[str, StringConstraints(pattern=r"^\.?[-_a-zA-Z0-9][-._a-zA-Z0-9]*$", max_length=253)]
LabelKey = Annotated[
    str, StringConstraints(max_length=naming.MAX_LABEL_KEY), AfterValidator(_qualified(naming.LABEL_KEY))
]
AnnotationKey = Annotated[
    str, StringConstraints(max_length=naming.MAX_LABEL_KEY), AfterValidator(_qualified(naming.ANNOTATION_KEY))
]
Quantities = Annotated[dict[LabelKey, Quantity], Field(max_length=32)]
LabelValue = Annotated[str, StringConstraints(pattern=naming.LABEL_VALUE, max_length=naming.MAX_LABEL_VALUE)]
Repository = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9_.]*/[-A-Za-z0-9_.]+$", max_length=200)]
Address = Annotated[str, StringConstraints(pattern=r"^https?://[^\s]+$", max_length=500)]


# which names and values a plugin takes is for the schema (crd.py) and for validation.checks to say
Parameters = Annotated[
    dict[str, str | list[str]], Field(max_length=16), WithJsonSchema({"type": "object", "properties": {}})
]


def rule(expression: str, message: str) -> dict[str, str]:
    """Return a CEL rule and the message that the user sees if it fails."""
    return {"rule": expression, "message": message}


def rules(*found: dict[str, str]) -> dict[str, Any]:
    """Return the schema extension for CEL rules."""
    return {"x-kubernetes-validations": list(found)}


def keyed(*keys: str) -> dict[str, Any]:
    """Return the schema extension of a list whose entries are identified by some of their fields."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


@dataclass(frozen=True, slots=True)
class Rule:
    """A constraint between fields: in CEL for the API server, and in Python for `encoder-operator render`."""

    expression: str
    message: str
    # None for a rule about updates, which only the API server can check, and for a rule that `validation.checks`
    # reports with its own reason
    holds: Callable[[Any], bool] | None


class ApiType(BaseModel):
    """A part of the resource: camelCase names, strict types, no unknown fields, immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
    )
    RULES: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _keeps_the_rules(self) -> Self:
        for entry in self.RULES:
            if entry.holds is not None and not entry.holds(self):
                raise PydanticCustomError("rule", "{sentence}", {"sentence": entry.message})
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Add the CEL rules to the schema."""
        found = handler.resolve_ref_schema(handler(core))
        return found | (rules(*(rule(entry.expression, entry.message) for entry in cls.RULES)) if cls.RULES else {})


Commit = Annotated[
    str,
    # the API server counts what a rule may cost by the longest string
    StringConstraints(pattern=r"^[0-9a-f]{40}$", max_length=64),
    Field(
        json_schema_extra=rules(
            rule(
                "self.matches('^[0-9a-f]{40}$')",
                "must be a commit of 40 hexadecimal digits, because a branch or tag may change while the model is served",
            )
        )
    ),
]


class SecretKey(ApiType):
    """A key of a Secret in the same namespace."""

    name: Name
    """Name of the Secret."""
    key: Key = "token"
    """Key of the Secret."""


class NamedReference(ApiType):
    """A reference to an object in the same namespace."""

    name: Name
    """Name of the object."""


class Resources(ApiType):
    """Compute resources of a container."""

    requests: Quantities = Field(default_factory=dict)
    """Minimum resources, which the scheduler reserves."""
    limits: Quantities = Field(default_factory=dict)
    """Maximum resources."""


class EnvVar(ApiType):
    """An environment variable with a literal value."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
    """Name of the variable."""
    value: Annotated[str, StringConstraints(max_length=4096)] = ""
    """Value of the variable."""


_OURS = ", ".join(f"'{name}'" for name in DENIED_ENVIRONMENT)
Environment = Annotated[
    list[EnvVar],
    Field(
        max_length=64,
        json_schema_extra=keyed("name")
        | rules(
            rule(
                f"self.all(e, !(e.name in [{_OURS}]))",
                "env contains a variable that is reserved for the operator, or that loads code from elsewhere (see docs/encodermodel.md)",
            )
        ),
    ),
]


def exactly_one(part: ApiType, *fields: str) -> bool:
    """Return whether exactly one of `fields` is set."""
    return sum(getattr(part, field) is not None for field in fields) == 1
