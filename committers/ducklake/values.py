"""Partition values that a DuckLake does not take. Tasks check rows by them, and commits files."""

from __future__ import annotations

from collections.abc import Iterable

from ..contract import DataFile
from ..errors import SchemaMismatchError
from ..file_tables.folder_columns import folder_value_problem

WRITE_AGAIN = (
    "A coupled query writes the batch again at its next start, without such rows if badRows is not `fail`. "
    "For a decoupled query, give the batch up with `penstock skip`."
)


def partition_value_problem(value: str | None) -> str | None:
    """Return why DuckLake cannot have a partition value; None if it can."""
    if value is not None and "\0" in value:
        return "has a NUL character, which catalogs in SQLite and Postgres do not have"
    return folder_value_problem(value)


def check_partition_values(files: Iterable[DataFile], batch: str) -> None:
    """
    Raises:
        SchemaMismatchError: DuckLake cannot have a partition value of these files.
    """
    for name, value in {value for file in files for value in file.partition_values}:
        if problem := partition_value_problem(value):
            raise SchemaMismatchError(
                f"A value of the partition column '{name}' of {batch} {problem}. The batch was not "
                f"committed. {WRITE_AGAIN}"
            )
