"""Retention of removed files and log entries in a Delta table: the intervals in its properties.

Delta parses them with Spark's grammar for calendar intervals (`DeltaConfigs.parseCalendarInterval`): the word
`interval` is optional, units are singular or plural, and months and years are rejected. The Delta library
parses only the form `interval 7 days` and uses its default otherwise. Nothing is deleted if the interval
cannot be parsed, or if the library would keep less than the table asks for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache

from ..texts.safe_text import get_logger

logger = get_logger(__name__)

FILES = "delta.deletedFileRetentionDuration"
LOG = "delta.logRetentionDuration"
DEFAULTS: Mapping[str, timedelta] = {FILES: timedelta(days=7), LOG: timedelta(days=30)}
"""Delta's defaults, for tables without the property."""

_UNITS = ("microsecond", "millisecond", "second", "minute", "hour", "day", "week")
_UNIT = rf"({'|'.join(_UNITS)})s?"
_INTERVAL = re.compile(rf"(?:interval \s*)?(?:\+?[0-9]{{1,12}}\s+{_UNIT}(?:\s+|$))+", re.ASCII)
_PAIR = re.compile(rf"([0-9]+)\s+{_UNIT}", re.ASCII)
_READ_BY_LIBRARY = re.compile(rf"interval [0-9]{{1,12}} {_UNIT}")
_LONGEST = timedelta(days=36_500)


def parse_interval(text: str) -> timedelta | None:
    """Parse `interval 1 week 2 days`, `7 days` or `168 hours`; None if the text is not a valid interval.

    Also returns None for what Delta rejects (months, years) and for signs and fractions. Intervals of more
    than a century count as one century.
    """
    text = text.strip().lower()
    if not _INTERVAL.fullmatch(text):
        return None
    try:
        total = sum((timedelta(**{f"{unit}s": int(n)}) for n, unit in _PAIR.findall(text)), timedelta())
    except OverflowError:
        return _LONGEST
    return min(total, _LONGEST)


def retention(configuration: Mapping[str, str], name: str) -> timedelta | None:
    """How long the table keeps removed files (`FILES`) or log entries (`LOG`); None if it cannot be
    parsed.
    """
    text = configuration.get(name)
    return DEFAULTS[name] if text is None else parse_interval(text)


def library_keeps_log(table_uri: str, configuration: Mapping[str, str]) -> bool:
    """Return True if the Delta library keeps log entries at least as long as the table asks for."""
    text = configuration.get(LOG)
    if text is None or _READ_BY_LIBRARY.fullmatch(text):
        return True
    asked = parse_interval(text)
    is_default = not text.startswith("interval")  # the library takes the first pair of several
    if asked is not None and is_default and asked <= DEFAULTS[LOG]:
        return True
    warn_kept(table_uri, LOG, text)
    return False


@lru_cache(maxsize=1000)
def warn_kept(table_uri: str, name: str, value: str) -> None:
    """Log once per process that nothing is deleted because of the property, and how to fix it."""
    logger.warning(
        "Penstock deletes no %s of the Delta table %s: its property %s is %r. Write it as one whole number "
        "and a unit up to weeks: ALTER TABLE ... SET TBLPROPERTIES ('%s' = 'interval 30 days').",
        "removed files" if name == FILES else "expired log entries",
        table_uri,
        name,
        value,
        name,
    )
