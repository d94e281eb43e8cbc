"""The label sets of an artifact, as a server has them: read once, tokenised once, and never changed.

A set has up to a million labels, and each API server process holds all of them. So texts and token ids stand one behind the other in
buffers, 60 to 100 bytes a label for labels of 20 characters; a Python object for each of them would take five times as many.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from encoder_plugins.artifact import label_sets
from encoder_plugins.families.gliner.label_runs import BiPromptBuilder
from encoder_plugins.families.gliner.payload import RunList
from encoder_plugins.families.gliner.prompt import LabelProblem, Labels

# labels that are tokenised at once
_BATCH = 10_000


class Texts:
    """Different texts in one buffer, found by number and by what they are."""

    def __init__(self, texts: Iterable[str]) -> None:
        content, ends, hashes = bytearray(), array("q", [0]), array("q")
        for text in texts:
            content += text.encode()
            ends.append(len(content))
            hashes.append(hash(text))
        self._content = bytes(content)
        self._ends = np.frombuffer(ends, np.int64)
        found = np.frombuffer(hashes, np.int64)
        self._order = np.argsort(found, kind="stable").astype(np.int32)
        self._hashes = found[self._order]

    def __len__(self) -> int:
        return len(self._hashes)

    def __getitem__(self, number: int) -> str:
        return self._content[self._ends[number] : self._ends[number + 1]].decode()

    def find(self, texts: Sequence[str]) -> list[int]:
        """Return the number of each text; -1 for one that is not there."""
        hashes = np.fromiter(map(hash, texts), np.int64, len(texts))
        begins = np.searchsorted(self._hashes, hashes)
        ends = np.searchsorted(self._hashes, hashes, side="right")
        return [
            next((int(number) for number in self._order[begin:end] if self[int(number)] == text), -1)
            for text, begin, end in zip(texts, begins, ends, strict=True)
        ]


class LabelSet:
    """One set. For several threads at once.

    Attributes:
        name: What requests call it.
        texts: Its labels.
        ids: The id of each.
    """

    def __init__(self, name: str, file: Path, builder: BiPromptBuilder) -> None:
        """Read and tokenise an artifact's file; the model takes its labels: prep has tried.

        Args:
            name: What requests call it.
            file: As ``artifact.label_sets.write`` wrote it.
            builder: What makes the model's prompts.
        """
        self.name = name
        self._builder = builder
        # made by two threads at the same time, it is made twice
        self._whole: tuple[tuple[str, ...], Labels] | None = None
        # to read it three times takes longer, and never holds it in Python's objects
        self.texts = Texts(label.text for label in label_sets.read(file))
        self.ids = Texts(label.id for label in label_sets.read(file))
        tokens, ends = bytearray(), array("q", [0])
        for run in runs_of((label.text for label in label_sets.read(file)), builder):
            tokens += run
            ends.append(len(tokens))
        self._tokens, self._ends = bytes(tokens), np.frombuffer(ends, np.int64)

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The tokens of each label."""
        return np.diff(self._ends) // np.dtype("<i4").itemsize

    def run(self, number: int) -> bytes:
        """Return the token ids of a label."""
        return self._tokens[self._ends[number] : self._ends[number + 1]]

    @property
    def names(self) -> tuple[str, ...]:
        """All labels. Only for a set that a request may use as a whole: they stay."""
        if self._whole is None:
            self._whole = tuple(self.texts[number] for number in range(len(self))), self._made(range(len(self)))
        return self._whole[0]

    def labels(self, names: tuple[str, ...]) -> Labels:
        """Return what a prompt holds of labels of this set."""
        if self._whole is not None and names is self._whole[0]:
            return self._whole[1]
        return self._made(self.texts.find(names))

    def _made(self, numbers: Sequence[int]) -> Labels:
        runs = RunList(self.run(number) for number in numbers)
        return Labels(self._builder.first, np.arange(len(runs), dtype=np.int32), runs)


def read(folder: Path | None, builder: BiPromptBuilder) -> dict[str, LabelSet]:
    """Return the sets of an artifact by name, tokenised. Takes seconds for a million labels.

    Args:
        folder: The artifact's folder of them; None where the model is not in an artifact.
        builder: What makes the model's prompts.
    """
    return {name: LabelSet(name, path, builder) for name, path in label_sets.files(folder).items()}


def runs_of(labels: Iterable[str], builder: BiPromptBuilder) -> Iterator[bytes]:
    """Yield the token ids of each label.

    Raises:
        LabelProblem: The model does not take one of them; ``position`` is its number.
    """
    left, before = iter(labels), 0
    while batch := tuple(islice(left, _BATCH)):
        try:
            yield from builder.runs(batch)
        except LabelProblem as problem:
            raise LabelProblem(before + problem.position, str(problem)) from None
        before += len(batch)
