"""Structured logging: one JSON object per line on standard error, for the operator and its libraries."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import Processor

# exceptions of these packages describe failed requests, not defects of the operator
_LIBRARIES_WITHOUT_TRACEBACK = ("kopf", "aiohttp")


class _OmitTraceback(logging.Filter):
    """Removes the traceback from errors of Kopf and aiohttp: their messages name the failed request and the cause."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and type(error).__module__.split(".")[0] in _LIBRARIES_WITHOUT_TRACEBACK:
            record.exc_info = None
        return True


def configure(level: str) -> None:
    """Send all log messages through structlog. Call once, at start."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(),
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    handler.addFilter(_OmitTraceback())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # one line per event or request would only repeat what the reconciler logs
    for noisy in ("kopf", "httpx2", "httpcore2", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
