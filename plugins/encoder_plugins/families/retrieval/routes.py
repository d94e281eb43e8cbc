"""The routes of every retriever beside its own. Standard library only, as the declarations that name them."""

from encoder_plugins.plugin import Route

_RERANK = "Rank documents by a query, in the shapes of Cohere's and Jina's APIs."
_SCORE = "Score pairs of texts, in the shape of vLLM's own route."
ROUTES = (
    *(Route(path=path, schema="rerank", summary=_RERANK) for path in ("/rerank", "/v1/rerank", "/v2/rerank")),
    *(Route(path=path, schema="score", summary=_SCORE) for path in ("/score", "/v1/score")),
)
"""The routes of every retriever."""
