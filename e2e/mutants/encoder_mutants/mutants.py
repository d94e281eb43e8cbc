"""The mutants of a module: pure functions from its source."""

from __future__ import annotations

import difflib
import random
from collections.abc import Sequence
from dataclasses import dataclass

import parso
from cosmic_ray.ast import ast_nodes
from cosmic_ray.mutating import mutate_code
from parso.tree import NodeOrLeaf

from encoder_mutants.operators import OPERATORS

ARITHMETIC = ("arith_expr", "term")


@dataclass(frozen=True)
class Mutant:
    """One change of a source.

    Attributes:
        operator: The operator's name.
        occurrence: The number of the operator's place, counted from 0 in the whole source.
        line: The number of the line, counted from 1.
        text: The line before the change, without the space around it.
    """

    operator: str
    occurrence: int
    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}, {self.operator}: {self.text}"

    def source(self, original: str) -> str:
        """Return the changed source."""
        changed = mutate_code(original, OPERATORS[self.operator](), self.occurrence)
        if changed is None:
            raise ValueError(f"{self}: the source has no such place")
        return str(changed)

    def diff(self, original: str, module: str) -> str:
        """Return the change as a unified diff."""
        before, after = original.splitlines(keepends=True), self.source(original).splitlines(keepends=True)
        return "".join(difflib.unified_diff(before, after, f"a/{module}", f"b/{module}", n=2))


def mutants(original: str) -> list[Mutant]:
    """Return every mutant of a source, in the order of its lines."""
    lines = original.splitlines()
    nodes = list(ast_nodes(parso.parse(original)))
    found = []
    for name, operator in OPERATORS.items():
        # the number counts places that are passed over as well: cosmic-ray finds them again by it
        positions = [(node, start) for node in nodes for start, _ in operator().mutation_positions(node)]
        found += [
            Mutant(name, number, line, lines[line - 1].strip())
            for number, (node, (line, _)) in enumerate(positions)
            if _matters(node)
        ]
    return sorted(found, key=lambda mutant: (mutant.line, mutant.operator, mutant.occurrence))


def _matters(node: NodeOrLeaf) -> bool:
    """Return whether a change of a node could be noticed: not that of a decorator's options, nor of a parameter list's asterisk."""
    if node.type == "operator" and node.parent is not None and node.parent.type not in ARITHMETIC:
        return False
    ancestor = node.parent
    while ancestor is not None and ancestor.type != "decorator":
        ancestor = ancestor.parent
    return ancestor is None


def sample(found: Sequence[Mutant], limit: int | None, module: str, seed: int = 0) -> list[Mutant]:
    """Return at most `limit` of a module's mutants, in their order.

    They are the same ones as long as neither the module nor the seed changes. Tests that were written for the survivors of one
    sample are judged by another one.
    """
    if limit is None or len(found) <= limit:
        return list(found)
    chosen = set(random.Random(f"{module} {seed}").sample(range(len(found)), limit))
    return [mutant for number, mutant in enumerate(found) if number in chosen]
