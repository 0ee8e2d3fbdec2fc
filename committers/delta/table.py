"""A Delta table as currently in its log: loading it, its token, and whether it is still the stream's
table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from ..contract import Batch, Token
from ..error_causes import retryable
from ..errors import NEXT_TRY, RetryableError, TableChangedError
from ..file_tables import table_changes
from ..file_tables.table_changes import check_same_id
from ..origins import query_number
from .history import CommitInfo, commits_since
from .library import in_short
from .table_state import DeltaTableState

if TYPE_CHECKING:
    import pyarrow as pa

KIND = "delta"

DIGEST_CHARS = 15
"""Number of hex digits of the digest that fit into a `txn` version, a signed 64-bit number."""
_LOOKBACK_COMMITS = 50
"""For a batch before the last one, which happens only if the checkpoint or store was copied or restored."""


def load_if_there(table_uri: str, storage_options: Mapping[str, str]) -> DeltaTable | None:
    """Load the table at its latest version; None if it does not exist.

    Raises:
        RetryableError: it cannot be read now.
    """
    try:
        return DeltaTable(table_uri, storage_options=dict(storage_options))
    except TableNotFoundError:
        return None
    except Exception as error:
        raise _unreadable(table_uri, error) from error


def load_version(table_uri: str, storage_options: Mapping[str, str], version: int) -> DeltaTable:
    """Load the table at a version that was the newest just before.

    Raises:
        RetryableError: it cannot be read now.
    """
    try:
        return DeltaTable(table_uri, version=version, storage_options=dict(storage_options))
    except Exception as error:
        raise _unreadable(table_uri, error) from error


def read_rows(table_uri: str, storage_options: Mapping[str, str], column: str, value: str) -> pa.Table | None:
    """Return the rows with a value in a text column; None if the table does not exist.

    Raises:
        RetryableError: it cannot be read now.
    """
    table = load_if_there(table_uri, storage_options)
    if table is None:
        return None
    try:
        rows: pa.Table = table.to_pyarrow_table(filters=[(column, "=", value)])
    except Exception as error:
        raise _unreadable(table_uri, error) from error
    return rows


def _unreadable(table_uri: str, error: Exception) -> RetryableError:
    return retryable(error)(
        f"The Delta table {table_uri} cannot be read: {in_short(error)}. Nothing was committed. Check the "
        f"path, the storage.* options and that the storage is reachable. {NEXT_TRY}"
    )


def load(table_uri: str, storage_options: Mapping[str, str], table_id: str | None = None) -> DeltaTable:
    """Load the table at its latest version.

    Raises:
        TableChangedError: it does not exist any more, or has another id than `table_id`.
        RetryableError: it cannot be read now.
    """
    table = load_if_there(table_uri, storage_options)
    if table is None:
        raise dropped(table_uri)
    check_same_table(table, table_id)
    return table


def dropped(table_uri: str) -> TableChangedError:
    return table_changes.dropped(f"Delta table {table_uri}")


def check_same_table(table: DeltaTableState, table_id: str | None) -> None:
    """
    Raises:
        TableChangedError: the table has another id.
    """
    check_same_id(f"Delta table {table.table_uri}", str(table.metadata().id), table_id)


# The token ----------------------------------------------------------------------------------------


class TableWithTokens(DeltaTableState, Protocol):
    """A table at one version that also has application transactions."""

    def app_version(self, app_id: str) -> int | None: ...


def token_of(table: TableWithTokens, query_id: str) -> Token | None:
    """The query's token in this snapshot.

    Raises:
        RetryableError: the log cannot be read now.
    """
    batch_id = table.app_version(_app_id(query_id))
    if batch_id is None:
        return None
    digest = table.app_version(_app_id(query_id, "digest"))
    return Token(batch_id, "" if digest is None else f"{digest:0{DIGEST_CHARS}x}")


def committed_version(table: TableWithTokens, query_id: str) -> int | None:
    """Version of the table that contains the query's last batch; None if there is none.

    Raises:
        RetryableError: the log cannot be read now.
    """
    return table.app_version(_app_id(query_id, "version"))


def earlier_digest(table: TableWithTokens, storage_options: Mapping[str, str], batch: Batch) -> str | None:
    """Digest prefix of the offsets from which a batch before the last one was delivered, as in the log; None
    if the log no longer shows it.

    Raises:
        RetryableError: the log cannot be read now.
    """
    last = committed_version(table, batch.stream.query_id) or table.version()
    commits = commits_since(table, storage_options, max(last - _LOOKBACK_COMMITS, -1))
    return next(filter(None, (commit.digest_of(batch) for commit in commits)), None)


def app_versions_of(batch: Batch, version: int, origins: Sequence[str] = ()) -> dict[str, int]:
    """The application transactions that make the batch the query's token.

    They are committed without a timestamp: with one, a retention property would remove them.

    Args:
        version: of the table after the commit
        origins: of the query
    """
    query_id = batch.stream.query_id
    number = query_number(query_id)
    return {
        _app_id(query_id): batch.batch_id,
        _app_id(query_id, "digest"): int(batch.digest[:DIGEST_CHARS], 16),
        _app_id(query_id, "version"): version,
        **{_app_id(origin): number for origin in origins},
    }


def recorded_origin(table: TableWithTokens, query_id: str, origins: Iterable[str]) -> str | None:
    """The first of the origins from which another query was the last to commit to the table.

    Raises:
        RetryableError: the log cannot be read now.
    """
    own = query_number(query_id)
    return next((origin for origin in origins if table.app_version(_app_id(origin)) not in (None, own)), None)


def _app_id(query_id: str, what: str = "") -> str:
    return f"penstock:{query_id}:{what}" if what else f"penstock:{query_id}"


def app_version(table: DeltaTable, app_id: str) -> int | None:
    """
    Raises:
        RetryableError: the log cannot be read now.
    """
    try:
        return table.transaction_version(app_id)
    except Exception as error:
        raise retryable(error)(
            f"The log of the Delta table {table.table_uri} cannot be read: {in_short(error)}. Nothing was "
            f"committed. Check that the storage is reachable. {NEXT_TRY}"
        ) from error


# RESTORE ------------------------------------------------------------------------------------------


def check_not_restored(
    table: DeltaTableState,
    storage_options: Mapping[str, str],
    commits: Sequence[CommitInfo],
    committed: int | None,
) -> None:
    """Check that no RESTORE has removed rows of the stream. RESTORE removes rows but not tokens.

    A RESTORE that removes no rows of the stream is accepted, and so is one that was itself undone.

    Args:
        commits: those since the last verified version
        committed: version of the table that contains the stream's last batch; None if there is none

    Raises:
        TableChangedError: rows that the stream delivered were removed.
        RetryableError: the log cannot be read now.
    """
    restores = [commit for commit in commits if commit.is_restore]
    while restores and committed is not None:
        restore = restores.pop()
        target = restore.restored_version(table, storage_options)
        if restore.version > committed and (target is None or target < committed):
            raise TableChangedError(
                f"The Delta table {table.table_uri} was restored in version {restore.version} to a version "
                "before batches that the stream has delivered. Their rows are missing, and continuing "
                "would leave a gap. Undo it with\n"
                f"    RESTORE TABLE ... TO VERSION AS OF {restore.version - 1}\n"
                "or accept the table without these rows:\n"
                "    penstock recover --accept-table\n"
                "or start the query with a new checkpoint to write the table from the beginning."
            )
        restores = [] if target is None else [one for one in restores if one.version <= target]
