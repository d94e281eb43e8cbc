"""What Kubernetes says of its own objects, as JSON schemas that kubeconform reads: strict, so that a misspelt field is refused."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

Schema = dict[str, Any]
LOCATION = "{{.Group}}_{{.ResourceAPIVersion}}_{{.ResourceKind}}.json"


def write(folder: Path, swagger: Path, crds: Iterable[Path]) -> None:
    """Write a schema for every kind in Kubernetes' swagger.json and in the given CustomResourceDefinitions."""
    folder.mkdir(parents=True, exist_ok=True)
    definitions = {name: _strict(found) for name, found in json.loads(swagger.read_text())["definitions"].items()}
    (folder / "all.json").write_text(json.dumps({"definitions": definitions}))
    for name, definition in definitions.items():
        for kind in definition.get("x-kubernetes-group-version-kind", []):
            body = {"$ref": f"{folder.as_uri()}/all.json#/definitions/{name}"}
            _file(folder, kind["group"], kind["version"], kind["kind"]).write_text(json.dumps(body))
    for path in crds:
        for crd in yaml.load_all(path.read_text(), yaml.CSafeLoader):
            spec = crd["spec"]
            for version in spec["versions"]:
                schema = _strict(version["schema"]["openAPIV3Schema"])
                # the parts that every object has: a definition leaves them out
                schema["properties"]["metadata"] = {"type": "object"}
                _file(folder, spec["group"], version["name"], spec["names"]["kind"]).write_text(json.dumps(schema))


def _file(folder: Path, group: str, version: str, kind: str) -> Path:
    # kubeconform takes what is before the slash of an apiVersion for the group, and there is none in "v1"
    return folder / f"{group or version}_{version}_{kind.lower()}.json"


def _strict(schema: Any) -> Any:
    """Close every object that lists its fields, and take the API's own types for what they accept."""
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}
    if schema.get("format") == "int-or-string" or schema.get("x-kubernetes-int-or-string") is True:
        return {"type": ["integer", "string"]}
    if schema.get("description", "").startswith("Quantity is a fixed-point"):
        return {"type": ["string", "number"]}
    found = {key: value for key, value in schema.items() if key not in ("format", "description", "default")}
    for key in ("items", "additionalProperties"):
        if key in found:
            found[key] = _strict(found[key])
    if "properties" in found:
        found["properties"] = {name: _strict(value) for name, value in found["properties"].items()}
        if schema.get("x-kubernetes-preserve-unknown-fields") is not True:
            found.setdefault("additionalProperties", False)
    return found
