"""The part of an artifact's ``config.json`` that decides a text's rows: written by prep, read by pooler and processor.

``config.json`` is the encoder's own configuration with two changes: ``architectures`` names our model class, and
``retrieval`` holds this object. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from encoder_plugins.families.retrieval.dense import DenseSpec, from_config

KEY = "retrieval"
# what precedes the tensors of the Dense modules in an artifact
PROJECTION = "projection."

InputType = Literal["query", "document"]
Similarity = Literal["maxsim", "meanmaxsim"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """How texts of one kind, queries or documents, become tokens and rows.

    Attributes:
        prompt: What is put before each text, the prefix that marks the kind included.
        most_tokens: Tokens kept of a text, prompt and special tokens included.
        skips: Whether tokens of the skiplist have no row.
        prefix_length: Characters at the start of ``prompt`` that precede a text whichever prompt a request names; None for all of them,
            as where an earlier version of prep did not write it.
    """

    prompt: str
    most_tokens: int
    skips: bool
    prefix_length: int | None = None

    def before(self, prompt: str | None) -> tuple[str, str]:
        """Return the prefix that marks the kind, and the prompt behind it; ``prompt`` is a request's own, None for that of the kind."""
        end = len(self.prompt) if self.prefix_length is None else self.prefix_length
        return self.prompt[:end], self.prompt[end:] if prompt is None else prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """How queries are expanded: tokens behind a short one, which have rows as the others have.

    Attributes:
        length: Tokens that a query has at least.
        token_id: The token that fills a query up to ``length``.
        attend: Whether the query's tokens attend to the added ones; otherwise these only attend to the query's.
    """

    length: int
    token_id: int
    attend: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalConfig:
    """What decides rows and scores, beside weights, encoder and tokenizer.

    Attributes:
        query: How queries become rows.
        document: How documents do.
        expansion: How queries are expanded; None where they are not.
        skiplist: Ids of tokens without a row.
        projection: The modules between encoder and rows.
        normalize: Whether rows are scaled to length 1.
        similarity: What a score is: the sum over the query's rows of the largest dot product, or the mean.
        strips: Whether white space around a text is left out; earlier versions of prep did not write it.
        width: Numbers of a row of the encoder, where no module changes it; otherwise of no use.
        prompts: The checkpoint's prompts by name, without the prefixes of kinds; earlier versions of prep did not write them.
    """

    query: Side
    document: Side
    expansion: Expansion | None
    skiplist: tuple[int, ...]
    projection: tuple[DenseSpec, ...]
    normalize: bool
    similarity: Similarity
    strips: bool = False
    width: int = 0
    prompts: Mapping[str, str] = field(default_factory=dict)

    @property
    def dimensions(self) -> int:
        """Width of a row."""
        return self.projection[-1].outputs if self.projection else self.width

    @property
    def most_tokens(self) -> int:
        """Tokens of the longest text."""
        return max(self.query.most_tokens, self.document.most_tokens)

    def side(self, input_type: InputType) -> Side:
        """Return how texts of one kind become rows."""
        return self.query if input_type == "query" else self.document

    def to_dict(self) -> dict[str, Any]:
        """Return what goes under ``retrieval`` in config.json."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RetrievalConfig:
        """Read what ``to_dict`` wrote; raises KeyError or TypeError where a field is missing or unknown."""
        parts = {
            "query": Side(**values["query"]),
            "document": Side(**values["document"]),
            "expansion": None if values["expansion"] is None else Expansion(**values["expansion"]),
            "skiplist": tuple(values["skiplist"]),
            "projection": from_config(values["projection"]),
        }
        return cls(**{**values, **parts})
