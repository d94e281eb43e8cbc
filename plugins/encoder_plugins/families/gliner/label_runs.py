"""Labels of bi-encoders to token ids, exactly as the library has their own tokenizer make them of each label alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer

from encoder_plugins.families.gliner.payload import RunList
from encoder_plugins.families.gliner.prompt import LabelProblem, Labels, WordPrompts, plain

# labels whose tokens are remembered: at most some 100 MB
_CACHED_LABELS = 100_000
_CACHED_CHARACTERS = 256


class BiPromptBuilder(WordPrompts):
    """Makes the prompts of one bi-encoder: words alone, and a run of tokens for each label. For several threads at once."""

    def __init__(
        self, tokenizer: Tokenizer, labels_tokenizer: Tokenizer, *, tokenizer_limit: int | None = None, most: int
    ) -> None:
        """Take the library's tokenizers.

        Args:
            tokenizer: That of texts.
            labels_tokenizer: That of labels.
            tokenizer_limit: Where the tokenizer of texts cuts a prompt off; None for never.
            most: Tokens of the longest label.

        Raises:
            ValueError: A tokenizer can't be used in this way.
        """
        super().__init__(tokenizer, tokenizer_limit=tokenizer_limit)
        self._tokenizer = plain(labels_tokenizer)
        self._around = self._tokenizer.num_special_tokens_to_add(False)
        self._most = most
        # every step is one operation on a dictionary; two threads at the same step cost an entry, and no answer
        self._runs: dict[str, bytes] = {}

    def labels(self, labels: tuple[str, ...]) -> Labels:
        """Return what a prompt holds of ``labels``, which are different from each other.

        Raises:
            LabelProblem: One of them has no tokens, or too many.
        """
        runs = [self._runs.get(label) for label in labels]
        unknown = [label for label, run in zip(labels, runs, strict=True) if run is None]
        if unknown:
            made = dict(zip(unknown, self._tokenize(unknown), strict=True))
            runs = [made[label] if run is None else run for label, run in zip(labels, runs, strict=True)]
            self._check_all(labels, runs)
            if len(self._runs) + len(made) > _CACHED_LABELS:
                self._runs = {}
            self._runs.update({label: run for label, run in made.items() if len(label) <= _CACHED_CHARACTERS})
        return Labels(self.first, np.arange(len(labels), dtype=np.int32), RunList(run or b"" for run in runs))

    def runs(self, labels: Sequence[str]) -> list[bytes]:
        """Return the token ids of each label, and remember none of them; raises as ``labels``."""
        runs = self._tokenize(labels)
        self._check_all(labels, runs)
        return runs

    def _tokenize(self, labels: Sequence[str]) -> list[bytes]:
        return [np.asarray(encoding.ids, "<i4").tobytes() for encoding in self._tokenizer.encode_batch(labels)]

    def _check_all(self, labels: Sequence[str], runs: Sequence[bytes | None]) -> None:
        for position, run in enumerate(runs):
            self._check(position, labels[position], len(run or b"") // 4)

    def _check(self, position: int, label: str, tokens: int) -> None:
        if tokens <= self._around:
            raise LabelProblem(position, f"the tokenizer leaves nothing of the label {label!r}")
        if tokens > self._most:
            raise LabelProblem(position, f"the label is {tokens} tokens; the model takes {self._most}")
