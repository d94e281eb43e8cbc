"""The parameters of GLiNER's preparations, and what they change in a checkpoint. Standard library only: declarations use them."""

from __future__ import annotations

from collections.abc import Mapping

from encoder_plugins.parameters import Value
from encoder_plugins.plugin import Parameter

WORDS_SPLITTER = "wordsSplitter"

PARAMETERS = (
    Parameter(
        name=WORDS_SPLITTER,
        values=("whitespace",),
        description="How texts are split into words, instead of words_splitter_type in the checkpoint's gliner_config.json."
        " The reference outputs are recorded with the original library under the same change.",
    ),
)


def changes(parameters: Mapping[str, Value]) -> dict[str, str]:
    """Return the fields of gliner_config.json that parameters give another value, with that value."""
    splitter = parameters.get(WORDS_SPLITTER)
    return {} if splitter is None else {"words_splitter_type": str(splitter)}
