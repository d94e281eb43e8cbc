"""The limits of requests to visual retrievers. Standard library only, as the declarations that name them."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from encoder_plugins.families.retrieval.limits import LIMITS as RETRIEVAL_LIMITS
from encoder_plugins.plugin import IMAGE_LIMITS, PDF_LIMITS, Limit

# images are large: a body may have more bytes than one of texts, and as many fewer requests are in flight
_OTHERS = {"body_bytes": 32 << 20, "in_flight": 64}


# of a model that cuts images into tiles, a request holds images as they came until the engine has them
_OF_TILES = {
    **_OTHERS,
    "in_flight": 32,
    "images": 16,
    "image_pixels": 20_000_000,
    # an A4 page has 1 805
    "pooled_rows": 2_048,
    "pdf_pages": 16,
    "pdf_page_pixels": 10_000_000,
}


def _with_defaults(limits: Iterable[Limit], others: Mapping[str, int]) -> tuple[Limit, ...]:
    return tuple(replace(limit, default=others[limit.name]) if limit.name in others else limit for limit in limits)


_ALL = (*RETRIEVAL_LIMITS, *IMAGE_LIMITS, *PDF_LIMITS)
LIMITS, LIMITS_OF_TILES = _with_defaults(_ALL, _OTHERS), _with_defaults(_ALL, _OF_TILES)
