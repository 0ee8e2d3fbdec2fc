"""What a writer has done so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Counts of entries, if nothing else is said. All but the last four only grow."""

    sent: int = 0
    """Each attempt counts."""
    delivered: int = 0
    retried: int = 0
    """Attempts after which an entry was put back."""
    throttled: int = 0
    """Attempts that the destination refused because of its load."""
    dropped: int = 0
    dead_letters: int = 0
    bytes: int = 0
    """Sent."""
    requests: int = 0
    """Requests sent."""
    throttled_requests: int = 0
    """Requests with a throttled entry."""
    timed_out_requests: int = 0
    waited_s: float = 0.0
    """Time that callers waited in `write` and `flush`."""
    in_flight: int = 0
    in_flight_requests: int = 0
    """Requests that wait for a response."""
    buffered: int = 0
    """Entries that wait to be sent, or to be sent again."""
    buffered_bytes: int = 0
