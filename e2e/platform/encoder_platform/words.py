"""Lists the phrases that this project does not use: `python -m encoder_platform.words [PATH...]`.

Read are the prose of Markdown (code left out), the comments, strings and names of Python (a string of a single word is a value), and the
lines of everything else. What is plain English elsewhere is banned here when it stands for a term of Kubernetes or vLLM: a reader should not have to learn words of ours.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from encoder_platform.pages import ROOT

# regular expressions over whole words, without regard to case, and what is written instead
BANNED: Mapping[str, str] = {
    r"a look|looks? (?:at|again|once)|(?:has|have) looked": "reconcile; inspect, check",
    r"wakes?|woken|wake-?ups?": "enqueue, requeue",
    r"at work": "in flight, running",
    r"asks?|asked|asking|asker": "request, requested",
    r"told|tells?": "report, reported; return",
    r"heard": "received",
    r"brought": "fetched, received",
    r"said": "reported, set",
    r"number formats?": "dtype",
    r"trunks?": "backbone",
    r"proofs?|proved?|vouch(?:es)?": "parity check, verification",
    r"(?<!certificate )authorit(?:y|ies)": "certificate authority (CA)",
    r"persons?|people|somebody|whoever": "user",
    r"doors?": "HTTP admission middleware",
    r"census": "in-flight counter, phase gauge",
    r"horizons?": "watch progress",
    r"patience": "retry policy",
    r"a few": "the number",
    r"can(?:no|')t be had": "is not available",
    r"put up with": "tolerate",
    r"nothing (?:needs|is) a person|nothing to do": "no problems detected; up to date",
    r"hindered|rehearse[ds]?": "status on API error; dry-run apply",
    r"is no (?:yaml|json|number|decimal|tar|list)": "invalid, is not a",
    r"can not": "cannot",
    r"shelf|shelves": "folder",
    r"riddles?": "describe what happens",
}

# paths and patterns below the root
COVERED: Sequence[str] = (
    "README.md",
    "docs/*.md",
    "e2e/**/*.py",
    "e2e/**/*.md",
    "kernels/**/*.py",
    "kernels/*.md",
    "plugins/**/*.py",
    "plugins/**/*.md",
    "plugins/**/scaffold/*.txt",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "images/**/*.md",
    "images/**/*.py",
    "images/**/Dockerfile",
    "images/release/**/*.py",
    "Makefile",
)
# what is about these words
EXEMPT: Sequence[str] = (
    "e2e/platform/encoder_platform/words.py",
    "e2e/platform/encoder_platform/tests/test_words.py",
)
# text and names that belong to others, by path and phrase
ALLOWED: Mapping[str, Sequence[str]] = {
    # io.IOBase.tell
    "e2e/node/encoder_node/errors.py": ("tell",),
    "plugins/encoder_plugins/artifact/manifest.py": ("tell",),
    # signal.set_wakeup_fd
    "plugins/encoder_plugins/serving/interrupts.py": ("wakeup",),
    # a user asks an administrator
    "docs/status.md": ("ask",),
    # texts and labels of requests
    "plugins/encoder_plugins/families/gliner/cases.py": ("person", "said"),
    "plugins/encoder_plugins/families/gliner/tests/test_chunks.py": ("said",),
    "plugins/encoder_plugins/families/embedding/cases.py": ("people",),
}

_BANNED = [
    (re.compile(rf"(?<![\w-])(?:{phrase})(?![\w-])", re.IGNORECASE), instead) for phrase, instead in BANNED.items()
]
_FENCE = re.compile(r"^\s*(```|~~~)")
_CODE = re.compile(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->")
# a value: a label of a request, a key, an option
_WORD = re.compile(r"[a-z]*([\"'])\w+\1")
_NAME = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


@dataclass(frozen=True)
class Finding:
    """A banned phrase in a file.

    Attributes:
        path: The file, below the root.
        line: The number of the line, counted from 1.
        phrase: The phrase as it stands there.
        instead: What is written instead.
    """

    path: str
    line: int
    phrase: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.phrase!r}; write: {self.instead}"


def findings(files: Iterable[Path], root: Path = ROOT) -> list[Finding]:
    """Return every banned phrase of the files, in their order."""
    found = []
    for file in files:
        path = str(file.relative_to(root))
        allowed = ALLOWED.get(path, ())
        for line, text in prose(file):
            found += [
                Finding(path, line + text[: match.start()].count("\n"), match[0], instead)
                for pattern, instead in _BANNED
                for match in pattern.finditer(text)
                if match[0].lower() not in allowed
            ]
    return found


def prose(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a file that are read by people, each with the number of its first line."""
    text = file.read_text("utf-8")
    if file.suffix == ".py":
        yield from _python(text)
    elif file.suffix == ".md":
        yield from _markdown(text)
    else:
        yield from enumerate(text.splitlines(), 1)


def _python(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.STRING and _WORD.fullmatch(token.string):
            continue
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.start[0], token.string
        elif token.type == tokenize.NAME:
            yield token.start[0], " ".join(_NAME.findall(token.string)).lower()


def _markdown(text: str) -> Iterator[tuple[int, str]]:
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number, _CODE.sub(" ", line)


def covered(root: Path = ROOT) -> list[Path]:
    """Return the files that COVERED names.

    Raises:
        FileNotFoundError: A pattern names none.
    """
    found: dict[Path, None] = {}
    for pattern in COVERED:
        files = [file for file in sorted(root.glob(pattern)) if file.is_file()]
        if not files:
            raise FileNotFoundError(f"{pattern}: no such file")
        found |= dict.fromkeys(files)
    left_out = {file for pattern in EXEMPT for file in root.glob(pattern)}
    return [file for file in found if file not in left_out]


def main(arguments: Sequence[str] | None = None) -> int:
    """List the banned phrases of the given files, or of those that are covered; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m encoder_platform.words", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="PATH", help="files below the root of the repository")
    files = parser.parse_args(arguments).files
    found = findings([file.resolve() for file in files] or covered())
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
