"""The text that is put before a text: a prompt of the checkpoint, one of the request's own, or that of a side of retrieval. Pure.

sentence-transformers puts prompt and text together before it tokenises, so that is all there is to a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.retrieval.config import InputType

# the prompts of `encode_query` and `encode_document` of sentence-transformers 6.2: the first that the checkpoint has
SIDES: Mapping[InputType, Sequence[str]] = {"query": ("query",), "document": ("document", "passage", "corpus")}

# how a prompt says that a document has no title; what stands for the title is the last word
UNTITLED = "title: none"

_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """The prompts of a checkpoint.

    Attributes:
        texts: Their texts by name.
        default: The name of the one for a request that names none; None for no prompt.
    """

    texts: Mapping[str, str]
    default: str | None = None

    def choose(
        self,
        *,
        prompt_name: str | None = None,
        input_type: InputType | None = None,
        prompt: str | None = None,
        path: str = "",
    ) -> str:
        """Return the text to put before each text of a request, which chooses it by one field or by none.

        Args:
            prompt_name: A prompt of the checkpoint.
            input_type: The side of retrieval.
            prompt: The text itself.
            path: What precedes the names of these fields in the request, e.g. ``data.``.

        Raises:
            InvalidRequest: Two of the fields are there, or the checkpoint has no such prompt.
        """
        fields = {"prompt_name": prompt_name, "input_type": input_type, "prompt": prompt}
        given = [name for name, value in fields.items() if value is not None]
        if len(given) > 1:
            raise InvalidRequest(f"{' and '.join(given)} are both there; send one of them", param=f"{path}{given[-1]}")
        if prompt is not None:
            return prompt
        if input_type is not None:
            return self.of_side(input_type)
        name = self.default if prompt_name is None else prompt_name
        if name is None:
            return ""
        if name not in self.texts:
            known = ", ".join(sorted(self.texts))
            raise InvalidRequest(f"no prompt {name[:_SHOWN]!r}; there is: {known}", param=f"{path}prompt_name")
        return self.texts[name]

    def of_side(self, side: InputType) -> str:
        """Return the prompt of a side of retrieval; empty where the checkpoint has none."""
        return next((self.texts[name] for name in SIDES[side] if name in self.texts), "")


def side_of_prompt(name: str) -> InputType | None:
    """Return the side of retrieval that the name of a prompt stands for in the library; None for another name."""
    return next((side for side, names in SIDES.items() if name in names), None)


def takes_title(prompt: str) -> bool:
    """Return whether a document's title has a place in ``prompt``."""
    return prompt.startswith(UNTITLED)


def with_title(prompt: str, title: str | None, *, path: str) -> str:
    """Return ``prompt`` with the title of a document in it.

    Args:
        prompt: The prompt that the request chose.
        title: The title; None for none.
        path: The field of the title.

    Raises:
        InvalidRequest: There is a title, and the prompt has no place for one.
    """
    if title is None:
        return prompt
    if not takes_title(prompt):
        raise InvalidRequest(
            f"the prompt {prompt[:_SHOWN]!r} has no place for a title; use a prompt that begins with {UNTITLED!r},"
            " such as that of input_type 'document' where the checkpoint has it",
            param=path,
        )
    return UNTITLED.removesuffix("none") + title + prompt.removeprefix(UNTITLED)
