"""Token types: an encoder's second table of tokens, of which every row but the first is left out here."""

from __future__ import annotations

from typing import Any

from encoder_plugins.errors import Unsupported

_SHOWN = "a b"


def check_token_types(tokenizer: Any, types: int) -> None:
    """Refuse a tokenizer that gives the tokens of a text another type than 0.

    Args:
        tokenizer: The checkpoint's, as transformers has it.
        types: Rows of the encoder's table; 0 for an encoder without one.

    Raises:
        Unsupported: The library would take another row of the table.
    """
    # the library leaves types out where the tokenizer does not list them among the model's inputs
    if not types or "token_type_ids" not in tokenizer.model_input_names:
        return
    found = sorted(set(tokenizer.backend_tokenizer.encode(_SHOWN).type_ids) - {0})
    if found:
        raise Unsupported(
            f"tokenizer.json: post_processor gives tokens of a text the type_id {found[0]}; only 0 is supported"
        )
