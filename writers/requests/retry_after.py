"""The Retry-After header of HTTP."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime


def parse_retry_after(header: str | None, now: datetime) -> float | None:
    """Return the seconds to wait from `now`, or None if there is no valid header.

    The header is a number of seconds or an HTTP date (RFC 9110, section 10.2.3). Fractions of seconds, which
    some services send, are accepted. A date in the past is no wait.
    """
    text = (header or "").strip()
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            date = parsedate_to_datetime(text)
        except ValueError:
            return None
        if date.tzinfo is None:  # "-0000"
            date = date.replace(tzinfo=timezone.utc)
        seconds = max(0.0, (date - now).total_seconds())
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
