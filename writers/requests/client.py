"""What the writer needs of a destination's client."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from typing import Protocol, TypeVar, runtime_checkable

from ...committers.errors import PenstockError, RetryableError
from .entry import Entry
from .results import Acknowledged, Failure, Fatal, Result, Retry

PayloadT_contra = TypeVar("PayloadT_contra", contravariant=True)


class Client(Protocol[PayloadT_contra]):
    """Sends requests. All calls are made in the writer's event loop, several `submit` at a time.

    Create the client anywhere; it opens its connections in the first `submit`.
    """

    async def submit(self, entries: Sequence[Entry[PayloadT_contra]]) -> Failure | Sequence[Result]:
        """Send one request and return a result for each entry, in their order; or one failure for all.

        `Delivered` is the result of an entry that the answer acknowledges. If it says nothing about an entry,
        its result is `UNACKNOWLEDGED`. If there are more or fewer results than entries, or one success for
        all of them, the writer takes none of them for delivered and sends all again.

        A cancelled call ends soon: the writer waits for it. The writer cancels it after the request time-out,
        and when it is aborted.
        """
        ...

    async def close(self) -> None:
        """Close the connections. Called once, when no request is in flight."""
        ...


@runtime_checkable
class ErrorClassifier(Protocol):
    """Capability of a client: it knows what the exceptions of its library mean."""

    def classify(self, error: Exception) -> Failure:
        """Return the result of all entries of the request that raised `error`."""
        ...


class Observer(Protocol[PayloadT_contra]):
    """Receives entries that are done, in the order of their acknowledgment."""

    def __call__(self, done: Sequence[tuple[Entry[PayloadT_contra], Acknowledged]]) -> None:
        """Called in the writer's event loop, which waits for it. An exception stops the writer, and these
        entries do not count as acknowledged.
        """
        ...


_RETRIED = (
    ConnectionError,
    TimeoutError,
    asyncio.TimeoutError,  # another one in Python 3.10
    asyncio.IncompleteReadError,
    socket.gaierror,
)
_UNREACHABLE = frozenset(
    (errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ETIMEDOUT)
)


def classify_error(error: Exception) -> Failure:
    """Connection errors and time-outs are retried, everything else is fatal."""
    code = type(error).__name__
    if isinstance(error, _RETRIED) or (isinstance(error, OSError) and error.errno in _UNREACHABLE):
        return Retry(code, str(error))
    kind = type(error) if isinstance(error, PenstockError) else RetryableError
    return Fatal(code, str(error), kind)
