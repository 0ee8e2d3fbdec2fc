"""The tables of streams, as they are now."""

from __future__ import annotations

from dataclasses import dataclass

from ..committers.contract import Token
from ..committers.errors import TableChangedError
from ..committers.store.sql import SqlManifestStore
from ..committers.store.status import StreamStatus
from ..datasource.destinations import open_committer, stored_table
from ..datasource.sink import check_same_table
from ..datasource.stored.stored_table import HasContents, TableContents, TableNow
from ..datasource.stored.table_access import TableAccess


@dataclass(frozen=True, slots=True)
class TableStatus:
    """The current state of a table, and the token of a stream in it."""

    now: TableNow | None
    """None: there is no table."""
    token: Token | None
    problem: str
    """How the table has changed since the stream has written to it; empty if it has not."""


def table_status(store: SqlManifestStore, stream: StreamStatus, access: TableAccess) -> TableStatus:
    """Read the table of a stream.

    Raises:
        PenstockError: it cannot be read.
    """
    table, token, problem = open_committer(stream, access, store), None, ""
    try:
        check_same_table(table, stream.key, store.written_table(stream.key))
        token = table.token(stream.key.query_id)
    except TableChangedError as error:
        problem = str(error)
    return TableStatus(stored_table(stream, access).now(), token, problem)


def table_contents(stream: StreamStatus, access: TableAccess) -> TableContents | None:
    """Return the data files of a table; None if there is no table, or if the destination does not tell.

    Raises:
        PenstockError: it cannot be read.
    """
    stored = stored_table(stream, access)
    return stored.contents() if isinstance(stored, HasContents) else None
