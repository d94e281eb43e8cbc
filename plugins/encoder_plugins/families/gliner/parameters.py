"""The parameters of GLiNER's preparations, and what they change in a checkpoint. Standard library only: declarations use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from encoder_plugins.errors import Unsupported
from encoder_plugins.families.gliner.languages import LANGUAGES
from encoder_plugins.parameters import Value
from encoder_plugins.plugin import Parameter

WORDS_SPLITTER = "wordsSplitter"
LANGUAGES_PARAMETER = "languages"
EXTRA = "words"
"""The extra with what a server needs for ``wordsSplitter: stanza``."""

_FIELD = "words_splitter_type"
_STANZA = "stanza"

_DESCRIPTION = (
    "How texts are split into words, instead of words_splitter_type in the checkpoint's gliner_config.json. The reference outputs are"
    " recorded with the original library under the same change."
)

WHITESPACE_PARAMETERS = (Parameter(name=WORDS_SPLITTER, values=("whitespace",), description=_DESCRIPTION),)
"""Those of plugins that have no tokenizers of languages."""

PARAMETERS = (
    Parameter(
        name=WORDS_SPLITTER,
        values=("whitespace", _STANZA),
        description=f"{_DESCRIPTION} stanza needs languages.",
    ),
    Parameter(
        name=LANGUAGES_PARAMETER,
        values=LANGUAGES,
        several=True,
        description="The languages that wordsSplitter: stanza splits with a tokenizer of their own, each from an auxiliary"
        " repository.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What the user chose.

    Attributes:
        changes: The fields of gliner_config.json that get another value, with that value.
        languages: Those with a tokenizer of their own; none for the splitter that is the same for all.
    """

    changes: Mapping[str, str] = field(default_factory=dict)
    languages: tuple[str, ...] = ()


def choices(parameters: Mapping[str, Value]) -> Choices:
    """Read the parameters of a preparation.

    Raises:
        Unsupported: They contradict each other.
    """
    splitter = parameters.get(WORDS_SPLITTER)
    languages = tuple(parameters.get(LANGUAGES_PARAMETER, ()))
    if splitter == _STANZA and not languages:
        raise Unsupported(
            f"parameters.{LANGUAGES_PARAMETER}: is not set; {WORDS_SPLITTER}: {_STANZA} needs the languages to prepare tokenizers of"
        )
    if languages and splitter != _STANZA:
        raise Unsupported(
            f"parameters.{LANGUAGES_PARAMETER}: is set, and parameters.{WORDS_SPLITTER} is {splitter or 'not set'}; only {_STANZA}"
            " has languages"
        )
    return Choices(changes={} if splitter is None else {_FIELD: str(splitter)}, languages=languages)
