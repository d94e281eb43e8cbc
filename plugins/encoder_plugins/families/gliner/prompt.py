"""Words and labels to token ids, exactly as the library's processor has its tokenizer make them.

A prompt is ``[class token, label, class token, label, ..., separator, word, word, ...]``, handed over as words, between
what the tokenizer puts around every text. Words handed over like that are tokenised independently of each other, so that
what is known about a word holds in every text: most words come out of a dictionary, and the tokenizer sees the others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from encoder_plugins.families.gliner import words as splitter
from encoder_plugins.families.gliner.config import GlinerConfig

Tokens = tuple[int, ...]
Positions = NDArray[np.int32]

# what one entry of the dictionary may hold, and how many there are; together at most some 70 MB
_CACHED_WORDS = 32_768
_CACHED_CHARACTERS = 64
_CACHED_TOKENS = 16
_CACHED_LABEL_LISTS = 256
_CACHED_LABEL_LIST_CHARACTERS = 4_096


class LabelProblem(ValueError):  # noqa: N818 - what is wrong with what a client sent
    """A label that cannot be part of a prompt, and its position in the list."""

    def __init__(self, position: int, message: str) -> None:
        super().__init__(message)
        self.position = position


@dataclass(frozen=True, slots=True)
class Labels:
    """The part of a prompt before the words.

    Attributes:
        tokens: Its token ids, with what the tokenizer puts first.
        positions: `[labels]`: where each label's class token is; with ``runs``, which of them is the label.
        runs: The token ids of labels that have an encoder of their own: int32, little-endian.
    """

    tokens: Tokens
    positions: Positions
    runs: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class BuiltPrompt:
    """What the engine gets for one text.

    Attributes:
        tokens: All token ids.
        words: `[words]`: the position of each word's first token; -1 for a word without one.
        cut: The number of tokens that the tokenizer's limit cut off.
    """

    tokens: list[int]
    words: Positions
    cut: int

    @property
    def words_kept(self) -> int:
        """The number of words that were not cut off: all of them, also those without tokens, where nothing was."""
        if not self.cut:
            return len(self.words)
        return int(np.count_nonzero(self.words >= 0))


class WordTokens:
    """The token ids of words, each as the tokenizer makes them of the word alone. For several threads at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # two generations: the younger takes what is new, and replaces the elder when it is full. Every step is one
        # operation on a dictionary; two threads at the same step cost an entry, and no answer
        self._young: dict[str, Tokens] = {}
        self._old: dict[str, Tokens] = {}

    def __call__(self, words: Sequence[str]) -> list[Tokens]:
        """Return the token ids of each word; none for a word that the tokenizer drops."""
        known: list[Tokens | None] = list(map(self._young.get, words))
        if None not in known:
            return known  # type: ignore[return-value]
        old = self._old
        found: dict[str, Tokens] = {}
        unknown: list[str] = []
        for word in dict.fromkeys(word for word, tokens in zip(words, known, strict=True) if tokens is None):
            if (tokens := old.get(word)) is None:
                unknown.append(word)
            else:
                found[word] = tokens
        if unknown:
            found.update(zip(unknown, self.tokenize(unknown), strict=True))
        self._keep(found)
        return [found[word] if tokens is None else tokens for word, tokens in zip(words, known, strict=True)]

    def tokenize(self, words: Sequence[str]) -> list[Tokens]:
        """Return what the tokenizer makes of each word; it lets other threads work meanwhile."""
        (encoding,) = self._tokenizer.encode_batch([words], is_pretokenized=True, add_special_tokens=False)
        tokens: list[list[int]] = [[] for _ in words]
        for number, token in zip(encoding.word_ids, encoding.ids, strict=True):
            if number is not None:
                tokens[number].append(token)
        return list(map(tuple, tokens))

    def _keep(self, found: dict[str, Tokens]) -> None:
        young = self._young
        for word, tokens in found.items():
            if len(word) <= _CACHED_CHARACTERS and len(tokens) <= _CACHED_TOKENS:
                young[word] = tokens
        if len(young) >= _CACHED_WORDS:
            self._old, self._young = young, {}


class WordPrompts:
    """Makes prompts of words, behind what precedes them. For several threads at once."""

    def __init__(self, tokenizer: Tokenizer, *, tokenizer_limit: int | None = None) -> None:
        """Take the library's tokenizer; ``tokenizer_limit`` is where it cuts a prompt off, None for never.

        Raises:
            ValueError: The tokenizer can't be used word by word.
        """
        own = plain(tokenizer)
        self.limit = tokenizer_limit
        self.word_tokens = WordTokens(own)
        self.first, self._last = _around(own)

    @property
    def behind(self) -> int:
        """The number of tokens that the tokenizer puts behind a prompt."""
        return len(self._last)

    def build(self, labels: Labels, pieces: Sequence[Tokens]) -> BuiltPrompt:
        """Return the prompt of words whose tokens are ``pieces``, cut off where the library's tokenizer would."""
        tokens = [*labels.tokens, *chain.from_iterable(pieces)]
        lengths = np.fromiter(map(len, pieces), np.int32, len(pieces))
        words = lengths.cumsum(dtype=np.int32)
        words += len(labels.tokens)
        words -= lengths
        if not lengths.all():
            # the library numbers words by the tokens that it sees: behind a word without any, each word takes the
            # position of the one before, and the last positions stay empty
            seen = words[lengths > 0]
            words = np.full(len(pieces), -1, np.int32)
            words[: len(seen)] = seen
        cut = 0
        if self.limit is not None and len(tokens) + len(self._last) > self.limit:
            end = self.limit - len(self._last)
            cut = len(tokens) - end
            del tokens[end:]
            words[words >= end] = -1
        tokens += self._last
        return BuiltPrompt(tokens, words, cut)


class PromptBuilder(WordPrompts):
    """Makes the prompts of one checkpoint, with labels in front of the words. For several threads at once."""

    def __init__(self, tokenizer: Tokenizer, config: GlinerConfig, *, tokenizer_limit: int | None = None) -> None:
        """Take the library's tokenizer; ``tokenizer_limit`` is where it cuts a prompt off, None for never.

        Raises:
            ValueError: The tokenizer does not fit the configuration, or can't be used word by word.
        """
        super().__init__(tokenizer, tokenizer_limit=tokenizer_limit)
        self._separator = self._single(config.separator_token, config.separator_token_id)
        self._class = self._single(config.class_token, config.class_token_id)
        if splitter.split(config.class_token) == [config.class_token]:
            raise ValueError(f"the class token {config.class_token!r} is a word: texts would hold it as one")
        self._markers, self._unknown = _markers(tokenizer, config)
        self._labels: dict[tuple[str, ...], Labels] = {}

    def labels(self, labels: tuple[str, ...]) -> Labels:
        """Return the part of a prompt that holds ``labels``, which are different from each other.

        Raises:
            LabelProblem: One of them has no tokens, or holds a marker.
        """
        if (known := self._labels.get(labels)) is not None:
            return known
        pieces = self.word_tokens(labels)
        for position, (label, piece) in enumerate(zip(labels, pieces, strict=True)):
            self._check(position, label, piece)
        tokens = [*self.first]
        positions = []
        for piece in pieces:
            positions.append(len(tokens))
            tokens += (self._class, *piece)
        tokens.append(self._separator)
        made = Labels(tuple(tokens), np.array(positions, np.int32))
        if sum(map(len, labels)) <= _CACHED_LABEL_LIST_CHARACTERS:
            if len(self._labels) >= _CACHED_LABEL_LISTS:
                self._labels = {}
            self._labels[labels] = made
        return made

    def _single(self, token: str, expected: int) -> int:
        (tokens,) = self.word_tokens.tokenize([token])
        if tokens != (expected,):
            raise ValueError(f"the tokenizer makes {list(tokens)} of {token!r}; config.json says {expected}")
        return expected

    def _check(self, position: int, label: str, tokens: Tokens) -> None:
        if not tokens:
            raise LabelProblem(position, f"the tokenizer leaves nothing of the label {label!r}")
        marker = next((self._markers[token] for token in tokens if token in self._markers), None)
        if marker is None and self._unknown is not None and self._unknown in label:
            marker = self._unknown
        if marker is not None:
            raise LabelProblem(position, f"the label {label!r} holds {marker!r}, which means something to the model")


def plain(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer that neither pads nor cuts."""
    own = Tokenizer.from_str(tokenizer.to_str())
    own.no_padding()
    own.no_truncation()
    return own


def _around(tokenizer: Tokenizer) -> tuple[Tokens, Tokens]:
    """Return what the tokenizer puts before and behind a text."""
    encoding = tokenizer.encode(["a"], is_pretokenized=True)
    inner = [position for position, word in enumerate(encoding.word_ids) if word is not None]
    if not inner or inner != list(range(inner[0], inner[-1] + 1)):
        raise ValueError("the tokenizer makes no tokens of the word 'a', or puts some of its own between them")
    return tuple(encoding.ids[: inner[0]]), tuple(encoding.ids[inner[-1] + 1 :])


def _markers(tokenizer: Tokenizer, config: GlinerConfig) -> tuple[dict[int, str], str | None]:
    """Return the tokens that no label may hold, by id, and the unknown token's text.

    That one's id is also what ordinary characters become that the vocabulary lacks.
    """
    added = tokenizer.get_added_tokens_decoder()
    markers = {token_id: token.content for token_id, token in added.items() if token.special}
    markers[config.class_token_id] = config.class_token
    markers[config.separator_token_id] = config.separator_token
    model = json.loads(tokenizer.to_str())["model"]
    unknown_id = model.get("unk_id")
    if unknown_id is None and model.get("unk_token") is not None:
        unknown_id = tokenizer.token_to_id(model["unk_token"])
    return markers, markers.pop(unknown_id, None) if unknown_id is not None else None
