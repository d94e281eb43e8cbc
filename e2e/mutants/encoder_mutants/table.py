"""Reads `modules.toml`: which modules are mutated, and which tests must notice."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

TABLE = Path(__file__).with_name("modules.toml")
ROOT = Path(__file__).resolve().parents[3]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Group(_Strict):
    """Modules that the same tests cover.

    Attributes:
        name: As it stands in the table of scores.
        modules: Paths below the root of the repository.
        unit: Paths or patterns of the unit tests' files; those marked engine, cluster, gpu or soak are left out.
        all: Paths or patterns of what else tests them: engine tests, and scenarios on an API server. `path::test` is a single one.
        scenarios: What a module has instead of `all`. A scenario runs the operator in a process of its own, so that the lines of a
            mutant cannot choose between them, and each takes tens of seconds.
        preload: Modules of other projects that the tests import; they are imported once for all mutants.
        merged: False while the modules are on a branch of their own.
    """

    name: str
    modules: tuple[str, ...]
    unit: tuple[str, ...]
    all: tuple[str, ...] = ()
    scenarios: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    preload: tuple[str, ...] = ()
    merged: bool = True

    def everything(self, module: str) -> tuple[str, ...]:
        """Return what `LEVEL=all` runs against a module's survivors."""
        return self.scenarios.get(module, self.all)


class Equivalent(_Strict):
    """A mutant that no test can notice.

    Attributes:
        module: The module's path.
        line: The text of the line, without the space around it; or several lines for the same reason.
        operator: The operator's name.
        reason: Why nothing observable changes.
    """

    module: str
    line: str | tuple[str, ...]
    operator: str
    reason: str

    @property
    def lines(self) -> tuple[str, ...]:
        """The texts of the lines."""
        return (self.line,) if isinstance(self.line, str) else self.line


def read(table: Path = TABLE) -> tuple[list[Group], list[Equivalent]]:
    """Return the groups, and the mutants that count for nothing.

    Raises:
        pydantic.ValidationError: The table has an unknown key or lacks one.
    """
    content: Mapping[str, Any] = tomllib.loads(table.read_text("utf-8"))
    groups = TypeAdapter(list[Group]).validate_python(content["group"])
    return groups, TypeAdapter(list[Equivalent]).validate_python(content.get("equivalent", []))


def files(patterns: Sequence[str], root: Path = ROOT) -> list[str]:
    """Return the files that patterns name, and the single tests, each once, below the root.

    Raises:
        FileNotFoundError: A pattern names none.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        file, separator, test = pattern.partition("::")
        paths = sorted(root.glob(file))
        if not paths:
            raise FileNotFoundError(f"{pattern}: no such file; {TABLE.name} names it")
        found |= dict.fromkeys(f"{path.relative_to(root)}{separator}{test}" for path in paths)
    return list(found)


def select(groups: Sequence[Group], names: Sequence[str]) -> list[tuple[Group, str]]:
    """Return the modules that the names select, each with its group: all of them, or by group, path, or end of a path.

    Raises:
        ValueError: A name selects nothing.
    """
    known = [(group, module) for group in groups for module in group.modules]
    if not names:
        return known
    chosen: dict[str, tuple[Group, str]] = {}
    for name in names:
        fitting = [(g, m) for g, m in known if name == g.name or m == name or m.endswith(f"/{name}")]
        if not fitting:
            raise ValueError(f"{name} is neither a module nor a group of {TABLE.name}")
        chosen |= {module: (group, module) for group, module in fitting}
    return list(chosen.values())
