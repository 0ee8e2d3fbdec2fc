"""Calls of the Lance library that every module needs, and the texts of its errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..cleaning.deletion import local_root
from ..error_causes import retryable
from ..errors import NEXT_TRY, RetryableError, check_installed

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset

_SOURCE_LINES = re.compile(r",? /\S+\.rs:\d+:\d+")
_SHORT_MAX = 400


def require_library() -> None:
    """See `check_installed`."""
    check_installed("penstock.lance needs", "pylance", "penstock[lance]", module="lance")


def in_short(error: BaseException) -> str:
    """Return the message of the library without the places in its source code."""
    return _SOURCE_LINES.sub("", str(error)).strip()[:_SHORT_MAX]


def is_local(table_uri: str) -> bool:
    return local_root(table_uri) is not None


def load_if_there(table_uri: str, storage_options: Mapping[str, str]) -> LanceDataset | None:
    """Load the table at its latest version; None if it does not exist.

    Raises:
        RetryableError: it cannot be read now.
    """
    require_library()
    import lance

    try:
        return lance.dataset(table_uri, storage_options=dict(storage_options) or None)
    except Exception as error:
        if isinstance(error, ValueError) and "was not found" in str(error):
            return None
        raise unreadable(table_uri, error) from error


def read_rows(table_uri: str, storage_options: Mapping[str, str], column: str, value: str) -> pa.Table | None:
    """Return the rows with a value in a text column; None if the table does not exist.

    Raises:
        RetryableError: it cannot be read now.
    """
    table = load_if_there(table_uri, storage_options)
    if table is None:
        return None
    text = value.replace("'", "''")
    try:
        return table.to_table(filter=f"{column} = '{text}'")
    except Exception as error:
        raise unreadable(table_uri, error) from error


def read_file(
    location: str, storage_options: Mapping[str, str], columns: list[str] | None = None
) -> pa.Table:
    """Read a data file that need not be part of the table yet, all columns or some.

    Raises:
        RetryableError: it cannot be read now.
    """
    from lance.file import LanceFileReader

    try:
        reader = LanceFileReader(location, storage_options=dict(storage_options) or None, columns=columns)
        return reader.read_all().to_table()
    except Exception as error:
        raise unreadable(location, error) from error


def transaction_of(table: LanceDataset) -> tuple[str, type | None]:
    """Return the id of the transaction that has made a version, and the class of its operation; None: the
    version does not say it. Reads the storage, and raises what the library does.

    The library cannot convert a compaction of a table with indices (`TypeError` of `RewrittenIndex`).
    """
    from lance import LanceOperation

    try:
        found = table.read_transaction(table.version)
    except TypeError as error:
        if "RewrittenIndex" not in str(error):
            raise
        return "", LanceOperation.Rewrite
    return ("", None) if found is None else (found.uuid, type(found.operation))


def unreadable(table_uri: str, error: Exception) -> RetryableError:
    return retryable(error)(
        f"The Lance table {table_uri} cannot be read: {in_short(error)}. Nothing was committed. Check the "
        f"path, the storage.* options and that the storage is reachable. {NEXT_TRY}"
    )
