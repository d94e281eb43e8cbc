"""The mistakes that are made on purpose: cosmic-ray's operators where it has them, and those that it lacks.

An operator finds places in a tree of parso and changes one of them. There is one mutant for each mistake that is likely, not for each
one that is possible: a boundary that moves by one, a condition that is ignored, a call that is missing, a limit that is far too large.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cosmic_ray.operators import binary_operator_replacement, boolean_replacer, break_continue
from cosmic_ray.operators import comparison_operator_replacement as comparison
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.operators.zero_iteration_for_loop import ZeroIterationForLoop
from parso.python.tree import Name
from parso.tree import BaseNode, Leaf, NodeOrLeaf

Position = tuple[tuple[int, int], tuple[int, int]]
LOGGERS = ("log", "logger", "logging")


def _position(node: NodeOrLeaf) -> Position:
    return node.start_pos, node.end_pos


def _expression(text: str, prefix: str) -> Name:
    """Return a piece of source; to parso it is a name, which no operator changes."""
    return Name(text, (0, 0), prefix=prefix)


class _Condition(Operator):
    """Replaces a condition by a constant."""

    constant: str
    filters: bool

    def mutation_positions(self, node: NodeOrLeaf) -> Iterator[Position]:
        """Return where the conditions are."""
        for index in self._indices(node):
            yield _position(node.children[index])

    def mutate(self, node: BaseNode, index: int) -> BaseNode:
        """Replace a condition."""
        node.children[list(self._indices(node))[index]] = _expression(self.constant, " ")
        return node

    def _indices(self, node: NodeOrLeaf) -> Iterator[int]:
        if node.type == "comp_if" and self.filters:
            yield 1
        elif node.type == "test" and len(node.children) == 5:
            # a if CONDITION else b
            yield 2
        elif node.type == "if_stmt":
            for number, child in enumerate(node.children):
                follows = child.type == "keyword" and child.value in ("if", "elif")
                if follows and node.children[number + 1].get_code().strip() != "TYPE_CHECKING":
                    yield number + 1

    @classmethod
    def examples(cls) -> Iterable[Example]:
        """Return examples."""
        return (
            Example("if a:\n    b", f"if {cls.constant}:\n    b"),
            Example("if a:\n    b\nelif c:\n    d", f"if a:\n    b\nelif {cls.constant}:\n    d", occurrence=1),
            Example("x = 1 if a else 2", f"x = 1 if {cls.constant} else 2"),
        )


class ConditionIsFalse(_Condition):
    """A guard that never acts: `if x` and `a if x else b`."""

    constant = "False"
    filters = False


class ConditionIsTrue(_Condition):
    """A branch that is always taken, and a filter that keeps everything."""

    constant = "True"
    filters = True


class DropStatement(Operator):
    """Drops a call whose result nobody uses (a check, an fsync, a close), and a raise."""

    def mutation_positions(self, node: NodeOrLeaf) -> Iterator[Position]:
        """Return where the statement is."""
        if node.type != "simple_stmt":
            return
        first = node.children[0]
        calls = first.type == "atom_expr" and first.get_first_leaf().value not in LOGGERS
        if calls or first.type == "raise_stmt" or (first.type == "keyword" and first.value == "raise"):
            yield _position(first)

    def mutate(self, node: BaseNode, index: int) -> BaseNode:
        """Replace the statement by `pass`."""
        node.children[0] = _expression("pass", node.children[0].get_first_leaf().prefix)
        return node

    @classmethod
    def examples(cls) -> Iterable[Example]:
        """Return examples."""
        return (
            Example("check(1)\n", "pass\n"),
            Example("await check(1)\n", "pass\n"),
            Example("raise ValueError(1) from error\n", "pass\n"),
        )


class Hundredfold(Operator):
    """Makes a number a hundred times larger, and 1 of 0: a limit that does not limit."""

    def mutation_positions(self, node: NodeOrLeaf) -> Iterator[Position]:
        """Return where the number is."""
        if node.type == "number":
            yield _position(node)

    def mutate(self, node: Leaf, index: int) -> Name:
        """Replace the number."""
        return _expression(f"({node.value} * 100 or 1)", node.prefix)

    @classmethod
    def examples(cls) -> Iterable[Example]:
        """Return examples."""
        return (Example("x = 4", "x = (4 * 100 or 1)"),)


class ExceptionReplacer(Operator):
    """Catches something else; unlike cosmic-ray's own operator, it knows names with a dot."""

    other = "StopAsyncIteration"

    def mutation_positions(self, node: NodeOrLeaf) -> Iterator[Position]:
        """Return where the exceptions are."""
        if node.type == "except_clause":
            for parent, index in self._exceptions(node):
                yield _position(parent.children[index])

    def mutate(self, node: BaseNode, index: int) -> BaseNode:
        """Replace an exception."""
        parent, child = self._exceptions(node)[index]
        parent.children[child] = _expression(self.other, parent.children[child].get_first_leaf().prefix)
        return node

    @staticmethod
    def _exceptions(clause: BaseNode) -> list[tuple[BaseNode, int]]:
        """Return each exception as its parent and its place there."""
        caught = clause.children[1]
        if caught.type != "atom":
            return [(clause, 1)]
        inside = caught.children[1]
        if inside.type != "testlist_comp":
            return [(caught, 1)]
        return [(inside, place) for place in range(0, len(inside.children), 2)]

    @classmethod
    def examples(cls) -> Iterable[Example]:
        """Return examples."""
        begin = "try:\n    a\nexcept "
        return (
            Example(f"{begin}b.C as c:\n    d", f"{begin}{cls.other} as c:\n    d"),
            Example(f"{begin}(A, b.C):\n    d", f"{begin}({cls.other}, b.C):\n    d"),
            Example(f"{begin}(A, b.C):\n    d", f"{begin}(A, {cls.other}):\n    d", occurrence=1),
        )


def _named(module: object, *names: str) -> list[type[Operator]]:
    found = {operator.__name__: operator for operator in module.operators()}  # type: ignore[attr-defined]
    return [found[name] for name in names]


OPERATORS: dict[str, type[Operator]] = {
    operator.__name__.removeprefix("Replace")
    .replace("ComparisonOperator_", "")
    .replace("BinaryOperator_", ""): operator
    for operator in (
        ConditionIsFalse,
        ConditionIsTrue,
        DropStatement,
        Hundredfold,
        ExceptionReplacer,
        ZeroIterationForLoop,
        break_continue.ReplaceBreakWithContinue,
        break_continue.ReplaceContinueWithBreak,
        boolean_replacer.ReplaceAndWithOr,
        boolean_replacer.ReplaceOrWithAnd,
        boolean_replacer.ReplaceTrueWithFalse,
        boolean_replacer.ReplaceFalseWithTrue,
        *_named(
            comparison,
            *(
                f"ReplaceComparisonOperator_{pair}"
                for pair in ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is")
            ),
        ),
        *_named(
            binary_operator_replacement,
            *(
                f"ReplaceBinaryOperator_{pair}"
                for pair in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_Mul")
            ),
        ),
    )
}
"""By their names in reports."""
