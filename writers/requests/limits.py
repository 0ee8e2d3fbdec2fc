"""Limits of a writer: what a request, the network and the memory hold."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

from ...committers.errors import ConfigurationError

_MEBIBYTE = 1024 * 1024

OnRefusal: TypeAlias = Literal["fail", "dead_letter"]
"""What happens to an entry that cannot be delivered: the writer stops, or the entry becomes a dead letter."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one writer. A destination sets those of its service.

    The names in Flink's AsyncSinkWriter (FLIP-171, FLIP-451) are in parentheses. A writer holds at most
    `buffered_entries_max + in_flight_requests_max * batch_entries_max` entries in memory; the same is true of
    bytes.

    Raises:
        ConfigurationError: raised on creation, with all problems at once.
    """

    batch_entries_max: int = 500
    """Entries of a request (`maxBatchSize`)."""
    batch_bytes_max: int = 4 * _MEBIBYTE
    """Size of a request (`maxBatchSizeInBytes`)."""
    in_flight_requests_max: int = 16
    """Requests that wait for a response (`maxInFlightRequests`)."""
    buffered_entries_max: int = 10_000
    """Entries that wait to be sent (`maxBufferedRequests`); beyond them the caller waits."""
    buffered_bytes_max: int = 32 * _MEBIBYTE
    """Bytes that wait to be sent; beyond them the caller waits."""
    buffer_time_max_s: float = 1.0
    """A request that is not full is sent when its oldest entry has waited this long (`maxTimeInBufferMS`)."""
    record_bytes_max: int = _MEBIBYTE
    """Size of an entry (`maxRecordSizeInBytes`). A larger one is never sent."""
    on_oversized: OnRefusal = "fail"
    """What happens to an entry that is larger than `record_bytes_max`."""
    request_timeout_s: float = 60.0
    """A request without a response is given up after this time (`requestTimeoutMS`)."""
    fail_on_timeout: bool = False
    """Whether the writer then stops (`failOnTimeout`). If not, the entries are sent again, with the same ids,
    as the destination may have received them.
    """

    def __post_init__(self) -> None:
        problems = [
            f"{field.name} must be a positive number, not {value}."
            for field in fields(self)
            if not isinstance(value := getattr(self, field.name), (bool, str))
            and not (value > 0 and math.isfinite(value))
        ]
        for smaller, larger in (
            ("record_bytes_max", "batch_bytes_max"),
            ("batch_bytes_max", "buffered_bytes_max"),
            ("batch_entries_max", "buffered_entries_max"),
        ):
            low, high = getattr(self, smaller), getattr(self, larger)
            if low > high:
                problems.append(f"{larger} ({high}) must be at least {smaller} ({low}).")
        if self.on_oversized not in ("fail", "dead_letter"):
            problems.append(f"on_oversized must be 'fail' or 'dead_letter', not {self.on_oversized!r}.")
        if problems:
            raise ConfigurationError("Limits of the writer:\n  - " + "\n  - ".join(problems))

    @property
    def in_flight_entries_max(self) -> int:
        return self.in_flight_requests_max * self.batch_entries_max

    @property
    def repeated_entries_max(self) -> int:
        """Entries from the first one that is not acknowledged. A crash repeats no more than these."""
        return self.buffered_entries_max + self.in_flight_entries_max
