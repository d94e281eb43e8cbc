"""The cases and tolerances of this plugin. Standard library and numpy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from encoder_plugins.artifact.cases import Inputs, complete
from encoder_plugins.errors import InvalidRequest, Unsupported
from encoder_plugins.families.embedding.cases import SENTENCE, check_scored, texts_of
from encoder_plugins.families.embedding.config import EmbeddingConfig
from encoder_plugins.families.embedding.parity import EmbeddingParity
from encoder_plugins.families.retrieval.cases import scored
from encoder_plugins.families.retrieval.prompts import Prompts, takes_title, with_title
from encoder_plugins.models.embeddinggemma.checkpoint import CHECKPOINT, sizes
from encoder_plugins.parity.protocol import Case, Variant

# what a case says beside its text
OPTIONS: Mapping[str, Any] = MappingProxyType(
    {"prompt_name": None, "input_type": None, "prompt": None, "title": None, "dimensions": None, "normalize": None}
)
# words of the longest text: more than the 2 048 tokens that the published checkpoint takes
MOST_WORDS = 2_300

QUESTION = "Which planet is known as the Red Planet?"
TITLES = ("The Solar System", "Städte – und 都市")


class EmbeddingGemmaParity(EmbeddingParity):
    """The family's parity check, with prompts by name, both sides of retrieval, titles, and every size."""

    options = OPTIONS

    def built_in(self, model: EmbeddingConfig) -> Sequence[Case]:
        """Return the built-in cases: texts of all kinds, each prompt, titles, sizes."""
        texts = texts_of(model, most_words=MOST_WORDS)
        found = [_case(name, text) for name, text in texts.items()]
        found += [
            _case(f"prompt-{number}", SENTENCE, prompt_name=name) for number, name in enumerate(sorted(model.prompts))
        ]
        found += [
            _case("query", QUESTION, input_type="query"),
            _case("document", SENTENCE, input_type="document"),
            _case("query-beyond-limit", texts["beyond-limit"], input_type="query"),
            _case("own-prompt", SENTENCE, prompt="task: fact checking | query: "),
        ]
        if _takes_title(model):
            found += [
                _case(f"title-{number}", SENTENCE, input_type="document", title=title)
                for number, title in enumerate(TITLES)
            ]
        for size in sizes(model.dimensions):
            found.append(_case(f"size-{size}", QUESTION, input_type="query", dimensions=size))
            found.append(_case(f"size-{size}-raw", SENTENCE, dimensions=size, normalize=False))
        found += [_case("unit", SENTENCE, normalize=True), _case("raw", SENTENCE, normalize=False)]
        return [*found, *(_case(name, query, documents=documents) for name, (query, documents) in scored().items())]

    def from_user(self, inputs: Inputs, others: Sequence[Case], model: EmbeddingConfig) -> Sequence[Case]:
        """Return a user's own cases.

        Raises:
            Unsupported: One is not a case, or requests what this checkpoint does not have.
        """
        found = complete(inputs, ("text",), {**OPTIONS, "documents": None}, [case["id"] for case in others])
        for case in found:
            where = f"inputs: {case['id']}"
            for name in ("text", "prompt_name", "prompt", "title"):
                if not isinstance(case[name], str | (type(None) if name != "text" else str)):
                    raise Unsupported(f"{where}: {name} is no text")
            if not case["text"]:
                raise Unsupported(f"{where}: text is empty")
            check_scored(case, OPTIONS, where)
            if case["input_type"] not in (None, "query", "document"):
                raise Unsupported(f"{where}: input_type is none of query, document and null")
            if case["dimensions"] not in (None, *sizes(model.dimensions)) or isinstance(case["dimensions"], bool):
                raise Unsupported(f"{where}: dimensions is not one of {', '.join(map(str, sizes(model.dimensions)))}")
            if case["normalize"] not in (None, True, False):
                raise Unsupported(f"{where}: normalize is none of true, false and null")
            try:
                chosen = {name: case[name] for name in ("prompt_name", "input_type", "prompt")}
                with_title(_prompts(model).choose(**chosen), case["title"], path="title")
            except InvalidRequest as error:
                raise Unsupported(f"{where}: {error.message}") from None
        return found

    def body(self, together: Sequence[Case], variant: Variant) -> dict[str, Any]:
        """Return the request body for cases of one group; several documents have a list of titles."""
        body = super().body(together, variant)
        if "texts" in body.get("data", ()):
            title = body["data"].pop("title")
            body["data"]["titles"] = None if title is None else [title] * len(together)
        return body


PARITY = EmbeddingGemmaParity(CHECKPOINT)


def _prompts(model: EmbeddingConfig) -> Prompts:
    return Prompts(texts=model.prompts, default=model.default_prompt)


def _takes_title(model: EmbeddingConfig) -> bool:
    return takes_title(_prompts(model).of_side("document"))


def _case(name: str, text: str, **options: Any) -> Case:
    return {"id": name, "text": text, **OPTIONS, "documents": None, **options}
