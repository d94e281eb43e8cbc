"""The limits of requests to retrievers. Standard library only, as the declarations that name them."""

from dataclasses import replace

from encoder_plugins.plugin import REQUEST_LIMITS, TEXT_LIMITS, Limit

# 1 000 documents of 512 tokens have about 3 million
CHARACTERS = 4_000_000

SCORING_LIMITS = (
    *(replace(limit, default=CHARACTERS) if limit.name == "characters" else limit for limit in TEXT_LIMITS),
    Limit(name="queries", default=32, description="Queries of one request that scores documents."),
    Limit(name="documents", default=1_000, description="Documents, or pairs, of one request that scores them."),
)
"""Further limits of plugins that take texts, and score documents by queries."""

LIMITS = (
    *REQUEST_LIMITS,
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
