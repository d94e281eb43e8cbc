"""The progress bar of a call with a long list."""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Any, Self

logger = logging.getLogger("encoder_client")


def wanted(show_progress_bar: bool | None) -> bool:
    """Return whether a bar is shown; None shows it where the log level is INFO or DEBUG, as sentence-transformers does."""
    if show_progress_bar is None:
        return logger.getEffectiveLevel() in (logging.INFO, logging.DEBUG)
    return show_progress_bar


class Progress:
    """Counts the items of a call that are answered; threads may share it."""

    def __init__(self, total: int, *, shown: bool) -> None:
        self._bar: Any = None
        self._lock = threading.Lock()
        if shown:
            # imported where it is used: most calls show no bar
            from tqdm.auto import tqdm

            self._bar = tqdm(total=total, desc="Texts", unit="text")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, count: int) -> None:
        """Count answered items."""
        if self._bar is not None:
            with self._lock:
                self._bar.update(count)
