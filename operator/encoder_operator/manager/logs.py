"""Logging: one JSON line per event on standard error, of our own loggers and of every library's."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import Processor

# the packages whose exceptions are about the API server, and not about our code
_LIBRARIES_WITHOUT_TRACEBACK = ("kopf", "aiohttp")


class _OmitTraceback(logging.Filter):
    """Leaves errors of Kopf's and of connections without a stack trace: their words say which request failed, and why."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and type(error).__module__.split(".")[0] in _LIBRARIES_WITHOUT_TRACEBACK:
            record.exc_info = None
        return True


def configure(level: str) -> None:
    """Send everything through structlog; call once, at start."""
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
    # a line per event of every pod, or per request, says nothing that the looks do not
    for noisy in ("kopf", "httpx2", "httpcore2", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
