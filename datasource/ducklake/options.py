"""Options of `penstock.ducklake`."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...committers.ducklake.address import DuckLakeCatalog
from ...committers.errors import check_installed
from ...committers.file_tables.evolution import SchemaEvolution
from ..options.changes import (
    ChangeOptions,
    problems_of_changes,
    problems_of_late_rows,
)
from ..options.declaring import declared, optional, options_of, passed_on, prefixes_of
from ..options.file_tables import FileTableOptions, partition_columns, problems_of_sorting
from ..options.parsing import text
from ..options.stream import parse_as

NAME = "penstock.ducklake"

_PART = r'("(?:[^"]|"")+"|[^\W\d]\w*)'
_TABLE_NAME = re.compile(rf"(?:{_PART}\.)?{_PART}")


def _catalog(given: str) -> str:
    DuckLakeCatalog.parse(text(given))
    return given


def _data_path(given: str) -> str:
    if given.startswith("s3://"):
        bucket, _, folder = text(given).removeprefix("s3://").strip("/").partition("/")
        if not bucket or not folder:
            raise ValueError("must be a folder of a bucket: s3://bucket/folder/")
        return f"s3://{bucket}/{folder}/"
    if "://" in given:
        raise ValueError(
            "must be on S3 (s3://bucket/folder/) or on a disk that driver and executors share: "
            "penstock.ducklake does not support other object stores"
        )
    if not posixpath.isabs(text(given)):
        raise ValueError("must be an absolute path")
    return f"{posixpath.normpath(given)}/"


def _table_name(given: str) -> tuple[str, str]:
    found = _TABLE_NAME.fullmatch(given.strip())
    if found is None:
        raise ValueError('must be table, schema.table or "schema"."table"')
    schema, table = (part.strip('"').replace('""', '"') for part in (found[1] or "main", found[2]))
    return schema, table


@dataclass(frozen=True, slots=True, kw_only=True)
class DuckLakeOptions(ChangeOptions, FileTableOptions):
    """Options of `penstock.ducklake`."""

    schema_evolutions: ClassVar[frozenset[SchemaEvolution]] = frozenset(SchemaEvolution) - {
        SchemaEvolution.EVOLVE
    }
    catalog: str = field(
        repr=False,
        metadata=declared(
            "catalog",
            _catalog,
            "Database of the DuckLake's catalog: `sqlite:/path/catalog.sqlite`, "
            "`duckdb:/path/catalog.ducklake`, or `postgresql://user@host:5432/database`; user and password "
            "may come from libpq's environment instead.",
            is_secret=True,
        ),
    )
    table: tuple[str, str] = field(
        metadata=declared("table", _table_name, "The table: `table` in the schema `main`, or `schema.table`.")
    )
    """(schema, name)"""
    data_path: str | None = optional(
        "dataPath",
        _data_path,
        "Data path of a new DuckLake: on S3 (`s3://bucket/lake/`), or on a disk that driver and executors "
        "share.",
    )
    partition_by: tuple[str, ...] | None = partition_columns()
    storage_options: Mapping[str, str] = passed_on(
        "storage.",
        str.upper,
        "Options of S3, named as in the Delta library, such as `storage.AWS_REGION`. Without an access key "
        "here the environment's is used.",
    )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> DuckLakeOptions:
        """Parse the options that Spark passes; see `parse_as`."""
        return parse_as(
            cls,
            NAME,
            options,
            examples={"catalog": "sqlite:/path/catalog.sqlite", "table": "schema.table"},
            refused={
                "path": 'path is not an option: give .option("table", ...) and .start() without a path.',
                "tableProperties": "tableProperties: DuckLake tables have no properties. Remove the option.",
            },
            problems_of_values=lambda values: [
                *problems_of_sorting(values),
                *problems_of_changes(values),
                *problems_of_late_rows(values, NAME),
                *_problems_of_one_file(values),
            ],
        )


def _problems_of_one_file(values: Mapping[str, Any]) -> list[str]:
    """Return the problem of a store in the file of the catalog. A process that opens a file with two copies
    of SQLite, DuckDB's and Python's, loses its locks when one of them closes it.

    Source: https://www.sqlite.org/howtocorrupt.html#multiple_copies_of_sqlite_linked_into_the_same_application
    """
    catalog = DuckLakeCatalog.parse(values.get("catalog", ""))
    store = values.get("store", "")
    if catalog.kind != "sqlite" or not store.startswith("sqlite:///"):
        return []
    if os.path.realpath(f"/{store.removeprefix('sqlite:///').lstrip('/')}") != catalog.path:
        return []
    return [
        "store is the file of the catalog. DuckDB and Python have each a SQLite of their own, and both at "
        "once damage the file. Give the store another file. If this one has been the store of a query, stop "
        "it and name a copy of the file."
    ]


def require_duckdb() -> None:
    """See `check_installed`."""
    check_installed("penstock.ducklake needs", "duckdb", "penstock[ducklake]", where="driver")


OPTIONS = options_of(DuckLakeOptions)
PREFIXES = prefixes_of(DuckLakeOptions)
