"""Requests for EmbeddingGemma: which prompt and title precede a text, and what its vector may be cut to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from encoder_plugins.backbones.gemma3_settings import check_dtype
from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.embedding.processor import EmbeddingProcessor
from encoder_plugins.families.embedding.request import Answer
from encoder_plugins.families.retrieval.fields import side_of
from encoder_plugins.families.retrieval.prompts import Prompts, with_title
from encoder_plugins.families.retrieval.scoring import ScoresAnswer
from encoder_plugins.inputs.body import Envelope
from encoder_plugins.inputs.text import check_texts
from encoder_plugins.models.embeddinggemma.checkpoint import CHECKPOINT, sizes
from encoder_plugins.models.embeddinggemma.request import EmbeddingGemmaRequest
from encoder_plugins.serving.processor import Schema, ServingContext


class EmbeddingGemmaProcessor(EmbeddingProcessor):
    """Serves the embeddings of one checkpoint."""

    checkpoint = CHECKPOINT
    schemas: ClassVar[Mapping[str, Schema]] = {
        **EmbeddingProcessor.schemas,
        "pooling": Schema(Envelope[EmbeddingGemmaRequest], Answer, ScoresAnswer, binary=True),
    }
    vector_fields = (*EmbeddingProcessor.vector_fields, "prompt", "title", "titles")

    def __init__(self, context: ServingContext) -> None:
        check_dtype(context.dtype)
        super().__init__(context)

    def with_prompts(self, request: Any, texts: Sequence[str], *, path: str) -> Sequence[str]:
        """Return the texts of a request with prompt and title before each; raises InvalidRequest."""
        own = getattr(request, "prompt", None)
        if own:
            check_texts([own], self.limits, path=f"{path}prompt", single=True)
        prompts = Prompts(texts=self._config.prompts, default=self._config.default_prompt)
        side = side_of(request.input_type, getattr(request, "is_query", None), path)
        prompt = prompts.choose(prompt_name=request.prompt_name, input_type=side, prompt=own, path=path)
        before = [
            with_title(prompt, title, path=field) for title, field in self._titles(request, len(texts), path=path)
        ]
        return [start + text for start, text in zip(before, texts, strict=True)]

    def _titles(self, request: Any, count: int, *, path: str) -> Sequence[tuple[str | None, str]]:
        """Return the title of each text, and its field."""
        title, titles = getattr(request, "title", None), getattr(request, "titles", None)
        if title is not None and (titles is not None or request.text is None):
            raise InvalidRequest("title is for the one document in text; send titles with texts", param=f"{path}title")
        if titles is None:
            found = [(title, f"{path}title")] * count
        elif request.texts is None:
            raise InvalidRequest("titles are for the documents in texts; send title with text", param=f"{path}titles")
        elif len(titles) != count:
            raise InvalidRequest(f"{len(titles)} titles for {count} texts", param=f"{path}titles")
        else:
            found = [(one, f"{path}titles[{position}]") for position, one in enumerate(titles)]
        for one, field in found:
            if one is not None:
                check_texts([one], self.limits, path=field, single=True)
        return found

    def check_dimensions(self, dimensions: int | None, param: str) -> None:
        """Refuse sizes that the checkpoint was not trained for."""
        accepted = sizes(self._config.dimensions)
        if dimensions is not None and dimensions not in accepted:
            known = ", ".join(map(str, accepted))
            raise InvalidRequest(f"the model has no vectors of {dimensions} numbers; there are: {known}", param=param)

    def normalize(self, dimensions: int | None, normalize: bool | None) -> bool | None:
        """Return what ``normalize`` means: vectors that are cut get length 1 unless the request says otherwise."""
        return True if normalize is None and dimensions is not None else normalize
