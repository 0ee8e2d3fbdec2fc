"""Ways for the request that commits to a SQL catalog of Iceberg to go wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableResponse, Table

Send = Callable[[], CommitTableResponse]
Fault = Callable[[Send], CommitTableResponse]


def response_lost(error: Exception) -> Fault:
    """The request lands, and the caller gets an error all the same."""

    def fault(send: Send) -> CommitTableResponse:
        send()
        raise error

    return fault


def not_sent(error: Exception) -> Fault:
    """The request never arrives."""

    def fault(_send: Send) -> CommitTableResponse:
        raise error

    return fault


def late(error: Exception, on_their_way: list[Send]) -> Fault:
    """The request arrives when the test lets it."""

    def fault(send: Send) -> CommitTableResponse:
        on_their_way.append(send)
        raise error

    return fault


@contextmanager
def catalog_with(*faults: Fault) -> Iterator[None]:
    """The next requests that commit to any table of a catalog in SQL go wrong, one after the other."""
    left, real = list(faults), SqlCatalog.commit_table

    def commit_table(catalog: SqlCatalog, *arguments: Any) -> CommitTableResponse:
        def send() -> CommitTableResponse:
            return real(catalog, *arguments)

        return left.pop(0)(send) if left else send()

    with mock.patch.object(SqlCatalog, "commit_table", commit_table):
        yield
    assert not left, "a request was not sent"


@contextmanager
def unreachable_catalog(error: Exception) -> Iterator[None]:
    """No table can be loaded."""

    def load_table(_catalog: SqlCatalog, _identifier: object) -> Table:
        raise error

    with mock.patch.object(SqlCatalog, "load_table", load_table):
        yield
