"""Schemas and words to token ids, exactly as gliner2's processor makes them.

A prompt is ``( [P] name ( [X] field [X] field ) ) [SEP_STRUCT] ... [SEP_TEXT] word word ...``, without class and separator token. Each
piece of it is tokenised alone, so that what is known about a piece holds in every prompt.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.gliner.prompt import Tokens, WordTokens
from encoder_plugins.families.gliner2.tasks import Schema

PART, SEPARATOR, TEXT = "[P]", "[SEP_STRUCT]", "[SEP_TEXT]"
MARKS = {"structures": "[C]", "entities": "[E]", "relations": "[R]"}
LABEL = "[L]"
MARKERS = (PART, *MARKS.values(), LABEL, SEPARATOR, TEXT, "[DESCRIPTION]", "[EXAMPLE]", "[OUTPUT]")
"""The tokens that the library adds to its tokenizer."""

Positions = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SchemaPrompt:
    """The part of a prompt before the words of the text.

    Attributes:
        tokens: Its token ids.
        spans: Of each span task, the positions of ``[P]`` and, behind it, of its fields' marks.
        classes: Of each classification, the positions of its labels' marks.
        prefix: `[words of the prefix]`: the position of each one's first token.
    """

    tokens: list[int]
    spans: list[list[int]]
    classes: list[list[int]]
    prefix: Positions


class Pieces(WordTokens):
    """The token ids of pieces, each as the tokenizer makes them of the piece alone. For several threads at once."""

    def tokenize(self, words: Sequence[str]) -> list[Tokens]:
        """Return what the tokenizer makes of each piece; it lets other threads work meanwhile."""
        encodings = self._tokenizer.encode_batch(list(words), add_special_tokens=False)
        return [tuple(encoding.ids) for encoding in encodings]


class PromptBuilder:
    """Makes the prompts of one checkpoint. For several threads at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Take the checkpoint's tokenizer.

        Raises:
            ValueError: A marker of the library is not one token of it.
        """
        own = Tokenizer.from_str(tokenizer.to_str())
        own.no_padding()
        own.no_truncation()
        self.pieces = Pieces(own)
        for marker, tokens in zip(MARKERS, self.pieces.tokenize(MARKERS), strict=True):
            if len(tokens) != 1:
                raise ValueError(f"the tokenizer makes {len(tokens)} tokens of {marker!r}; it takes one")
        self._reserved = {token: added.content for token, added in own.get_added_tokens_decoder().items()}
        unknown = unknown_id(own)
        # its id is also that of ordinary characters which the vocabulary lacks
        self._unknown = self._reserved.pop(unknown, None) if unknown is not None else None

    def schema(self, schema: Schema) -> SchemaPrompt:
        """Return the part of a prompt before the words of the text.

        Raises:
            InvalidRequest: A string of the schema holds a token that means something to the model, or becomes no token.
        """
        self._check(schema)
        tokens: list[int] = []
        tasks: list[list[int]] = []
        parts = [(task.piece, MARKS[task.kind], [field.name for field in task.fields]) for task in schema.spans]
        parts += ((task.piece, LABEL, list(task.labels)) for task in schema.classes)
        for piece, mark, names in parts:
            before = [SEPARATOR] if tokens else []
            words = [*before, "(", PART, piece, "(", *chain.from_iterable((mark, name) for name in names), ")", ")"]
            starts = self._append(tokens, words)[len(before) :]
            tasks.append([starts[1], *starts[4 : 4 + 2 * len(names) : 2]])
        self._append(tokens, [TEXT])
        prefix = self._append(tokens, schema.prefix)
        spans, classes = tasks[: len(schema.spans)], [task[1:] for task in tasks[len(schema.spans) :]]
        return SchemaPrompt(tokens, spans, classes, np.array(prefix, np.int32))

    def build(self, schema: SchemaPrompt, pieces: Sequence[Tokens]) -> tuple[list[int], Positions]:
        """Return the token ids of a prompt whose text has words with the tokens ``pieces``, and each word's first token.

        Words of the prefix come first. A word without tokens takes the position of the next word, as in the library; at the end
        of a prompt, where the library fails, that of the last token.
        """
        tokens = [*schema.tokens, *chain.from_iterable(pieces)]
        lengths = np.fromiter(map(len, pieces), np.int32, len(pieces))
        words = lengths.cumsum(dtype=np.int32) - lengths + np.int32(len(schema.tokens))
        return tokens, np.minimum(np.concatenate((schema.prefix, words)), np.int32(len(tokens) - 1))

    def _append(self, tokens: list[int], words: Sequence[str]) -> list[int]:
        """Add the token ids of ``words`` to ``tokens``, and return where each begins."""
        starts = []
        for piece in self.pieces(words):
            starts.append(len(tokens))
            tokens += piece
        return starts

    def _check(self, schema: Schema) -> None:
        for (path, text), piece in zip(schema.strings, self.pieces([text for _, text in schema.strings]), strict=True):
            marker = next((self._reserved[token] for token in piece if token in self._reserved), None)
            if marker is None and self._unknown is not None and self._unknown in text:
                marker = self._unknown
            if marker is not None:
                raise InvalidRequest(f"it holds {marker!r}, which means something to the model", param=path)
            if text and not piece:
                raise InvalidRequest("the tokenizer leaves nothing of it", param=path)


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """Return the id that a tokenizer gives to what its vocabulary lacks; None where there is none."""
    model = json.loads(tokenizer.to_str())["model"]
    found: int | None = model.get("unk_id")
    if found is None and model.get("unk_token") is not None:
        found = tokenizer.token_to_id(model["unk_token"])
    return found
