"""Users and maintainers read the words of the Kubernetes documentation, and none of the private ones that this project once used."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from encoder_operator.api.v1alpha1 import crd, docs
from encoder_operator.cli import generate, main
from encoder_operator.status import conditions

ROOT = Path(__file__).parents[3]
PACKAGE = Path(__file__).parents[1]
CHART = ROOT / "charts" / "encoder-operator"

# the phrase, and what to write instead
BANNED = {
    r"\b(a|an|one|each|every|next|last|first|earlier|this|the|of a|further) looks?\b": "reconcile",
    r"\blook(s|ed|ing)? at (a|the|every|an|each|once|again)\b|\blooked (at|up)\b|\blooks up\b": "reconcile, resolve, check",
    r"\b(wake|wakes|woken|woke|waking)\b": "enqueue, requeue",
    r"\bat work\b": "running, in flight",
    r"\b(a|free|prep) (place|seat)\b(?! holder)": "slot",
    r"\b(is|are|was|were|be|been|being) (told|asked|brought|heard)\b": "reported, requested, delivered, received",
    r"\bsays so\b|\bis said\b|\blast words?\b|\bin (its|their|his) own words\b": "reports, termination message",
    r"\bnumber formats?\b": "dtype",
    r"\btrunks?\b": "backbone",
    r"\b(proof|proofs|proved|proves|unproved)\b": "parity check, verified",
    r"\bauthorit(y|ies)\b(?<!certificate authority)(?<!certificate authorities)": "certificate authority",
    r"\b(a|the|whichever|another) person\b|\bpersons\b|\bpeople\b": "user",
    r"\b(nobody|somebody)\b(?!'s business)": "say who: no user, another client",
    r"\bpatience\b": "timeout, grace period, retry policy",
    r"\b(horizon|census|wake-?ups?|rehearse|rehearsal)\b": "WatchProgress, PhaseGauge, WorkQueue, dry run",
    r"\b(the|a|each) definition\b": "CustomResourceDefinition",
    r"\bthe spec is understood\b": "Spec is valid",
    r"\bneeds? a person\b": "needs the user's attention",
    r"\bthere is nothing to do\b": "All resources are up to date",
    r"\bwhat the spec asks for\b|\b(is|are) asked for\b": "matches the current spec",
    r"\btoday's (operator|defaults)\b": "the current operator",
    r"\bmakes another pod\b": "creates a replacement pod",
    r"\bis not verified here\b": "not yet verified on this accelerator",
    r"\ba mistake in the operator\b": "unexpected error",
    r"\bis no (YAML|JSON|tar)\b|\bleads to no\b": "is not valid YAML",
    r"\bstands it\b": "whether accuracy stays within tolerance",
    r"\bput up with\b": "toleration period",
    r"\bnot yours to set\b": "reserved for the operator",
    r"\bserves? on\b": "keeps serving",
    r"\b(is|are|be) tried again\b": "is retried",
    r"\bis of no effect\b|\bOf no effect\b": "is ignored",
    r"\bby itself\b": "automatically, separately",
    r"\bfor ever\b": "forever",
    r"\b(can|should|is|does|are|do|wo|could|was|has)n't\b|\bcan't\b": "cannot, does not",
    r"\bof (ours|yours)\b": "of the operator, your own",
    r"\bequals? (to )?the original\b|\bproved equal\b": "matches the reference outputs within tolerance",
}
PAGES = (
    "encodermodel.md",
    "settings.md",
    "status.md",
    "operations.md",
    "install.md",
    "security.md",
    "api-versions.md",
    "autoscaling.md",
    "integrations.md",
    "recipes.md",
    "faults.md",
    "field.md",
    "troubleshooting.md",
)


def violations(text: str) -> list[str]:
    """Return each banned phrase in a text, with what to write instead."""
    return [
        f"{found.group(0)!r}: write {better}"
        for phrase, better in BANNED.items()
        for found in re.finditer(phrase, text, re.IGNORECASE)
    ]


def prose(source: str) -> Iterator[str]:
    """Yield the comments, docstrings and string literals of a module."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def names(source: str) -> Iterator[str]:
    """Yield the names that a module defines, as words."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield " ".join(re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", node.name)).lower()


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "tests" not in path.relative_to(PACKAGE).parts)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_modules_use_the_words_of_kubernetes(path: Path) -> None:
    source = path.read_text()
    assert violations("\n".join(prose(source))) == []
    # log messages, conditions and events are literals of these modules, so they are covered too
    private = r"\b(look|looked|wake|woken|told|tell|heard|brought|place|patience|horizon|census|proof|trial)\b"
    assert [name for name in names(source) if re.search(private, name)] == []


@pytest.mark.parametrize("name", PAGES)
def test_pages_about_the_operator_use_the_words_of_kubernetes(name: str) -> None:
    text = (ROOT / "docs" / name).read_text()
    # names of tests link to their files; rows about prep Jobs and serving pods are the plugins' own
    about_the_operator, _, _ = re.sub(r"\[`test_\w+`\]", "", text).partition("## In the prep Job and the serving pods")
    assert violations(about_the_operator) == []


def test_the_architecture_of_the_operator_uses_the_words_of_kubernetes() -> None:
    about_the_operator, _, _ = (ROOT / "docs" / "architecture.md").read_text().partition("## HTTP to vectors")
    assert violations(about_the_operator.partition("## Terms")[2]) == []


@pytest.mark.parametrize(
    "path",
    sorted(path for path in CHART.rglob("*") if path.is_file()),
    ids=lambda path: path.relative_to(CHART).as_posix(),
)
def test_the_chart_uses_the_words_of_kubernetes(path: Path) -> None:
    assert violations(path.read_text()) == []


def test_generated_texts_use_the_words_of_kubernetes() -> None:
    texts = [crd.to_yaml(), docs.page(), generate.settings_page(), conditions.page()]
    assert [found for text in texts for found in violations(text)] == []


def test_the_help_of_the_command_line_uses_the_words_of_kubernetes(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ([], ["run"], ["gc"], ["smoke-test"], ["doctor"], ["crd"], ["render"]):
        with pytest.raises(SystemExit):
            main.main([*command, "--help"])
    assert violations(capsys.readouterr().out) == []


@pytest.mark.parametrize("reason", sorted(conditions.reason_docs()))
def test_meanings_and_remedies_are_sentences(reason: str) -> None:
    for text in (conditions.reason_docs()[reason].meaning, conditions.reason_docs()[reason].remedy):  # type: ignore[index]
        assert text[0].isupper() or text[0] in "`", text
        assert not text.endswith("."), text
