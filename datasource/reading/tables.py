"""Tables for plain Python: see `penstock.reader`."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from ...readers.table import TableScan
from .formats import read_options


def open_table(format: str, options: Mapping[str, str] | None = None, /, **more: str) -> TableScan:  # noqa: A002
    """Load one version of a table: its schema, its files, its rows. Runs anywhere.

    Args:
        format: one that can be read, such as `penstock.delta`; see docs/reading.md
        options: those of the reader; more of them as keywords
        more: such as `path="/lake/flights", where="day = '2026-11-29'"`

    Returns:
        With `schema`, `files()` and `to_reader()`. All of them are of the same version.

    Raises:
        ConfigurationError: lists all problems with the options; or the table does not exist.
        TableNotSupportedError: the table has a feature that cannot be read. The message names it.
        RetryableError: the table cannot be read now.
    """
    parsed = read_options(format, {**(options or {}), **more})
    return TableScan.of(parsed.open(), parsed.columns, parsed.where)


def read(format: str, options: Mapping[str, str] | None = None, /, **more: str) -> pa.RecordBatchReader:  # noqa: A002
    """Return the rows of a table, as batches of a few megabytes. Memory does not depend on the size of the
    table.

    Args and errors are those of `open_table`. `RetryableError` is also raised while the batches are read.
    """
    return open_table(format, options, **more).to_reader()
