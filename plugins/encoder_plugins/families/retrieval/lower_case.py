"""What ``do_lower_case`` of the library's Transformer module does to a tokenizer."""

from __future__ import annotations

from tokenizers import Tokenizer, normalizers


def lower_case(tokenizer: Tokenizer) -> None:
    """Let a tokenizer lower-case a text before anything else, unless one of its own normalizers is ``Lowercase``."""
    own = tokenizer.normalizer
    if isinstance(own, normalizers.Sequence):
        steps = [own[position] for position in range(len(own))]
    else:
        steps = [] if own is None else [own]
    if not any(isinstance(step, normalizers.Lowercase) for step in steps):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])
