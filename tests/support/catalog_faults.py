"""Faults of the request that commits to a SQL catalog. See also `penstock.testing.faults.lossy`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableResponse
from tests.support.faults import in_next_call

Send = Callable[[], CommitTableResponse]


def at_request(action: Callable[[Send], CommitTableResponse]) -> AbstractContextManager[None]:
    """Run the action instead of the next request. It gets the function that sends the request."""
    return in_next_call(SqlCatalog, "commit_table", lambda send, *given: action(partial(send, *given)))


@contextmanager
def late(error: Exception) -> Iterator[list[Send]]:
    """The next request fails with this error before it is sent. The test can send it later."""
    requests: list[Send] = []

    def keep(send: Send) -> CommitTableResponse:
        requests.append(send)
        raise error

    with at_request(keep):
        yield requests
