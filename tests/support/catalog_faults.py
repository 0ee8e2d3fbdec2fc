"""Faults of the request that commits to a SQL catalog. See also `penstock.testing.faults.lossy`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableResponse

Send = Callable[[], CommitTableResponse]


@contextmanager
def at_request(action: Callable[[Send], CommitTableResponse]) -> Iterator[None]:
    """Run the action instead of the next request. It gets the function that sends the request."""
    real, left = SqlCatalog.commit_table, [action]

    def commit_table(catalog: SqlCatalog, *arguments: Any) -> CommitTableResponse:
        def send() -> CommitTableResponse:
            return real(catalog, *arguments)

        return left.pop()(send) if left else send()

    with mock.patch.object(SqlCatalog, "commit_table", commit_table):
        yield
    assert not left, "no request was sent"


@contextmanager
def late(error: Exception) -> Iterator[list[Send]]:
    """The next request fails with this error before it is sent. The test can send it later."""
    requests: list[Send] = []

    def keep(send: Send) -> CommitTableResponse:
        requests.append(send)
        raise error

    with at_request(keep):
        yield requests
