"""`encoder-operator crd`: write the CustomResourceDefinition and the reference pages in docs/, all generated from the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from encoder_operator.api.v1alpha1 import crd, docs
from encoder_operator.manager.settings import Settings
from encoder_operator.revisions.hashing import canonical_json
from encoder_operator.status import conditions

_CRD = "encodermodels.encoders.dev.yaml"


def files() -> dict[Path, str]:
    """Return the content of each generated file by its path in the repository."""
    return {
        Path("crds") / _CRD: crd.to_yaml(),
        # Helm packages only what is inside the chart's folder
        Path("charts/encoder-operator/files/crds") / _CRD: crd.to_yaml(),
        Path("docs/encodermodel.md"): docs.page(),
        Path("docs/settings.md"): settings_page(),
        Path("docs/status.md"): conditions.page(),
    }


def settings_page() -> str:
    """Return the reference of the operator's environment variables as Markdown."""
    rows = [
        f"| `ENCODER_{name.upper()}` | {_default(field.get_default(call_default_factory=True))} | {docs.cell(field.description or '')} |"
        for name, field in Settings.model_fields.items()
    ]
    head = [
        "# Settings of the operator\n",
        "The operator reads them from its environment. The chart writes most of them from `settings` and the image values.\n",
    ]
    return "\n".join([docs.GENERATED, *head, "| variable | default | meaning |", "|---|---|---|", *rows]) + "\n"


def _default(value: Any) -> str:
    if value is None:
        return ""
    shown = value.model_dump(by_alias=True) if hasattr(value, "model_dump") else value
    return f"`{canonical_json(shown)}`"
