"""The requests of this plugin: those of its family, with the side of retrieval, titles, and prompts of one's own."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from encoder_plugins.families.embedding.request import Request


class EmbeddingGemmaRequest(Request, frozen=True):
    """One text or several, what is put before each, and what their vectors should be like; or documents to score."""

    prompt: Annotated[
        str | None, Meta(description="A prompt of your own, put before each text as it is; may be empty.")
    ] = None
    title: Annotated[
        str | None,
        Meta(
            description="The title of the document `text`, where the prompt has a place for one, as that of documents has."
        ),
    ] = None
    titles: Annotated[
        list[str | None] | None,
        Meta(description="The title of each document of `texts`; null for one without."),
    ] = None
