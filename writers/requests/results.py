"""What a client reports for an entry of a request: expected endings are values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ...committers.errors import PenstockError, RetryableError


@dataclass(frozen=True, slots=True)
class Delivered:
    """The destination has acknowledged this entry, in the form that its documentation gives."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """The destination does not need the entry, e.g. because it already has a newer version."""

    message: str = ""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The destination will never accept this entry, but may accept others."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Retry:
    """The destination did not accept the entry this time, or its response was lost."""

    code: str
    message: str = ""
    retry_after_s: float | None = None
    """The destination asks to wait at least this long."""
    is_throttled: bool = False
    """The destination is overloaded, or limits the rate: fewer entries are sent at a time."""


@dataclass(frozen=True, slots=True)
class Split:
    """The destination refused the request because of some of its entries, and did not say which. They are
    sent again in smaller requests, without waiting; a request of one entry is a dead letter.
    """

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Fatal:
    """No entry can be delivered until someone intervenes. The writer stops with an error."""

    code: str
    message: str
    error: type[PenstockError] = RetryableError
    """What the caller can do, see `committers/errors.py`."""


Acknowledged: TypeAlias = Delivered | Dropped | DeadLetter
"""Results after which an entry is done."""

Result: TypeAlias = Delivered | Dropped | DeadLetter | Retry | Split | Fatal
"""What a request has done with one entry."""

Failure: TypeAlias = Retry | Split | Fatal
"""Results that all entries of a request can have together."""

DELIVERED = Delivered()
"""The result of an entry that was acknowledged without more to say."""
