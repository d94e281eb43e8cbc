"""The limits of requests for entities. Standard library only: declarations use them."""

from encoder_plugins.plugin import REQUEST_LIMITS, TEXT_LIMITS, Limit

LIMITS = (
    *REQUEST_LIMITS,
    *TEXT_LIMITS,
    Limit(name="labels", default=1_000, description="Labels of one text, and different labels of one request."),
    Limit(name="label_characters", default=256, description="Characters of one label."),
    Limit(
        name="prompts",
        default=1_024,
        description="Prompts that one request may become: one for each text, or for each chunk of one.",
    ),
    Limit(
        name="candidates",
        default=8 * 1024 * 1024,
        description="Words times span widths times labels of a request with a threshold below 0.1, where almost any of"
        " them can be a candidate; 16 bytes each.",
    ),
    Limit(name="entities", default=100_000, description="Entities in one answer."),
)

TOKEN_LIMITS = (
    *(limit for limit in LIMITS if limit.name != "candidates"),
    Limit(
        name="candidates",
        default=1_000_000,
        description="Pairs of a span and a label that one request's scores permit, before those that overlap are dropped.",
    ),
)

LINKING_LIMITS = (
    *TOKEN_LIMITS,
    Limit(
        name="label_tokens",
        default=50_000,
        description="Tokens of all different labels of one request: what encoding them costs when none of them is in the cache.",
    ),
    Limit(
        name="label_vectors",
        default=16_384,
        description="Given vectors of labels that one request takes to the engine: each prompt has those of its labels.",
    ),
)
