"""The Retry-After header of HTTP."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime


def retry_after_of(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait that a response asks for.

    Args:
        headers: of the response, with names in lower case or found in any case
    """
    return parse_retry_after(headers.get("retry-after"), datetime.now(timezone.utc))


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
        except (ValueError, OverflowError):  # a time zone of any length
            return None
        if date.tzinfo is None:  # "-0000"
            date = date.replace(tzinfo=timezone.utc)
        seconds = max(0.0, (date - now).total_seconds())
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
