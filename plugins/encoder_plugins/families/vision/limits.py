"""The limits of requests to visual retrievers. Standard library only, as the declarations that name them."""

from dataclasses import replace

from encoder_plugins.families.retrieval.limits import LIMITS as RETRIEVAL_LIMITS
from encoder_plugins.plugin import IMAGE_LIMITS, PDF_LIMITS, Limit

# images are large: a body may have more bytes than one of texts, and as many fewer requests are in flight
_OTHERS = {"body_bytes": 32 << 20, "in_flight": 64}


def _with_default(limit: Limit) -> Limit:
    return replace(limit, default=_OTHERS[limit.name]) if limit.name in _OTHERS else limit


LIMITS = (*map(_with_default, RETRIEVAL_LIMITS), *IMAGE_LIMITS, *PDF_LIMITS)
