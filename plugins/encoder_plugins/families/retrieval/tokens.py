"""From texts to the tokens of an engine request, exactly as ``MultiVectorEncoder`` makes them. Pure but for the tokenizer's file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from encoder_plugins.families.retrieval.config import InputType, RetrievalConfig

if TYPE_CHECKING:
    from PIL.Image import Image

FILE = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class TokenisedText:
    """One text, or one image.

    Attributes:
        ids: Its tokens, those of the expansion included.
        keys: The number of first tokens that tokens attend to; all of them unless expansion tokens only query.
        kept: `[tokens]` bool: which tokens have a row; None where all have one.
        image: The image, whose place is one of ``ids``; None for a text.
        image_tokens: Its tokens; 0 for a text.
    """

    ids: list[int]
    keys: int
    kept: NDArray[np.bool_] | None
    image: Image | None = None
    image_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Tokens that the engine reads."""
        return len(self.ids) + (0 if self.image is None else self.image_tokens - 1)

    @property
    def rows(self) -> int:
        """Rows of the text."""
        return self.tokens if self.kept is None else int(np.count_nonzero(self.kept))


class TextTokenizer:
    """Makes tokens of queries and documents; used by several threads at once.

    Args:
        folder: The artifact's model folder.
        config: What decides tokens and rows.
    """

    def __init__(self, folder: Path, config: RetrievalConfig) -> None:
        self._config = config
        content = (folder / FILE).read_text(encoding="utf-8")
        self._backends: dict[InputType, Tokenizer] = {
            kind: _truncating(content, config.side(kind).most_tokens) for kind in ("query", "document")
        }
        tokens = 1 + max(self._backends["document"].get_vocab().values())
        # which token ids have a row where the skiplist counts
        self._has_row = ~np.isin(np.arange(tokens), config.skiplist)

    def __call__(self, texts: Sequence[str], kind: InputType, prompt: str | None = None) -> list[TokenisedText]:
        """Return the tokens of each text, behind a prompt of the request's, or behind that of the kind where ``prompt`` is None."""
        prefix, prompt = self._config.side(kind).before(prompt)
        texts = [prompt + text for text in texts]
        if self._config.strips:
            # PyLate puts the prefix before what it has stripped, and strips prompt and text together
            texts = [text.strip() for text in texts]
        encoded = self._backends[kind].encode_batch_fast([prefix + text for text in texts])
        return [self._text(encoding.ids, kind) for encoding in encoded]

    def strings(self, ids: Sequence[int]) -> list[str]:
        """Return each token as the tokenizer writes it."""
        return [self._backends["document"].id_to_token(token) or "" for token in ids]

    def _text(self, ids: list[int], kind: InputType) -> TokenisedText:
        expansion, keys = self._config.expansion, len(ids)
        if kind == "query" and expansion is not None and keys < expansion.length:
            ids = [*ids, *[expansion.token_id] * (expansion.length - keys)]
            keys = len(ids) if expansion.attend else keys
        kept = None
        if self._config.side(kind).skips and self._config.skiplist:
            kept = self._has_row[ids]
        return TokenisedText(ids, keys, None if kept is None or kept.all() else kept)


def _truncating(content: str, most_tokens: int) -> Tokenizer:
    tokenizer = Tokenizer.from_str(content)
    tokenizer.enable_truncation(most_tokens)
    return tokenizer
