"""The part of an artifact's ``config.json`` that is GLiNER's own: written by prep, read by pooler and IO processor.

``config.json`` is the encoder's own configuration with two changes: ``architectures`` names our model class, and
``gliner`` holds this object. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

KEY = "gliner"
# the folder with the tokenizer of labels, where they have an encoder of their own: of a published checkpoint, and of an artifact's model
LABELS_TOKENIZER = "labels_tokenizer"

Head = Literal["span", "token"]
"""Which layers score: every span up to a width, or words, of which spans are made by their scores as start, end and inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelEncoder:
    """The encoder that a bi-encoder has for its labels.

    Attributes:
        config: Its configuration, as the object of a config.json of transformers [labels_encoder_config].
        projection: Whether a linear layer leads from its width to GLiNER's.
        max_tokens: Tokens of the longest label.
    """

    config: Mapping[str, Any]
    projection: bool
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GlinerConfig:
    """What decides an answer, beside weights, encoder and tokenizer. Names in brackets are gliner_config.json's.

    Attributes:
        hidden_size: Width of words, spans and labels [hidden_size].
        max_width: Words of the longest span; token-level models have no longest one [max_width].
        max_words: Words taken of a text [max_len].
        class_token: Stands before each label [ent_token].
        class_token_id: Its id in the tokenizer [class_token_index].
        separator_token: Stands between labels and words [sep_token].
        separator_token_id: Its id in the tokenizer.
        embed_class_token: A label is read at its class token; at the token behind it otherwise [embed_ent_token].
        lstm_layers: Layers of the LSTM over words; 0 for none [num_rnn_layers].
        projection: Whether a linear layer leads from the encoder's width to ``hidden_size``.
        head: What scores [span_mode: markerV0 or token_level]. Artifacts of earlier versions have spans.
        represent_spans: Whether words only propose spans, which are then scored by vectors of their own [represent_spans].
        label_encoder: The encoder of labels; None where labels stand before the text, behind class tokens. With it the tokens
            named above mean nothing, and the LSTM has weights that the library never applies.
        languages: Those that stanza splits into words [words_splitter_type: stanza]; none for the whitespace splitter.
    """

    hidden_size: int
    max_width: int
    max_words: int
    class_token: str = ""
    class_token_id: int = -1
    separator_token: str = ""
    separator_token_id: int = -1
    embed_class_token: bool = True
    lstm_layers: int
    projection: bool
    head: Head = "span"
    represent_spans: bool = False
    label_encoder: LabelEncoder | None = None
    languages: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return what goes under ``gliner`` in config.json."""
        values = asdict(self)
        # as earlier versions wrote it
        if not self.languages:
            del values["languages"]
        if not self.represent_spans:
            del values["represent_spans"]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GlinerConfig:
        """Read what ``to_dict`` wrote; raises TypeError where a field is missing or unknown."""
        labels = values.get("label_encoder")
        return cls(**{**values, "label_encoder": None if labels is None else LabelEncoder(**labels)})
