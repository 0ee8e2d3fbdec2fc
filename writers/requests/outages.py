"""Reports outages of a destination in the log."""

from __future__ import annotations

import math
from typing import Any

from ...committers.texts.safe_text import get_logger
from .buffer import Queued
from .results import Retry

logger = get_logger(__name__)

OUTAGE_S = 10.0
"""An entry that is not accepted for so long is reported in the log."""
WARNING_EVERY_S = 30.0


class OutageReports:
    """Reports an outage that lasts, now and then."""

    def __init__(self) -> None:
        self._warn_at = -math.inf

    def warn(self, queued: Queued[Any], retry: Retry, now: float) -> None:
        """Report an entry that is sent again, unless that began or was reported a short time ago."""
        elapsed_s = now - queued.first_sent_at
        if elapsed_s < OUTAGE_S or now < self._warn_at:
            return
        self._warn_at = now + WARNING_EVERY_S
        logger.warning(
            "Entry %s has not been accepted for %.0f s (%s attempts): %s. %s It is sent again.",
            queued.entry.id,
            elapsed_s,
            queued.attempts,
            retry.code,
            retry.message,
        )
