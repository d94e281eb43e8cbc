"""The limits of requests to retrievers. Standard library only, as the declarations that name them."""

from encoder_plugins.plugin import REQUEST_LIMITS, TEXT_LIMITS, Limit

SCORING_LIMITS = (
    Limit(name="queries", default=32, description="Queries of one request that scores documents."),
    Limit(name="documents", default=1_000, description="Documents, or pairs, of one request that scores them."),
)
"""Further limits of plugins that score documents by queries."""

LIMITS = (
    *REQUEST_LIMITS,
    *TEXT_LIMITS,
    *SCORING_LIMITS,
    Limit(
        name="score_bytes",
        default=256 << 20,
        description="Bytes that the rows of all queries have, times the documents of the request: they are sent to the"
        " engine with each document.",
    ),
    Limit(
        name="pooled_rows",
        default=1_024,
        description="Rows of a document whose rows `pool_factor` merges: time and memory grow with their square.",
    ),
)
