"""Options of `penstock.duckdb`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...committers.duckdb.address import parse_path, parse_table_name
from ...committers.errors import check_installed
from ...committers.file_tables.evolution import SchemaEvolution
from ..database.options import DatabaseOptions
from ..options.changes import ChangeOptions, problems_of_changes
from ..options.declaring import declared, option, options_of, prefixes_of
from ..options.parsing import count, text


@dataclass(frozen=True, slots=True, kw_only=True)
class DuckDbOptions(ChangeOptions, DatabaseOptions):
    """Options of `penstock.duckdb`."""

    data_source = "penstock.duckdb"
    examples: ClassVar[Mapping[str, str]] = {"path": "/data/events.duckdb", "dbtable": "events"}
    schema_evolutions: ClassVar[frozenset[SchemaEvolution]] = frozenset(SchemaEvolution)
    database: str = field(
        metadata=declared(
            "path",
            lambda given: parse_path(text(given)),
            "The file of the database, an absolute path that the driver and all executors see. It is created "
            "if it does not exist. Tasks write into the folder `<path>.staging`.",
        )
    )
    table: tuple[str, str] = field(
        metadata=declared(
            "dbtable",
            parse_table_name,
            "The table: `table` in the schema `main`, `schema.table`, or in double quotes with other "
            "characters. Case is ignored.",
        )
    )
    """(schema, name)"""
    lock_wait_s: int = option(
        "lockWaitSeconds",
        count(1, 86_400),
        "How long a connection waits, in seconds, while another process has the file open.",
        default="30",
    )

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> list[str]:
        """See `DatabaseOptions`."""
        return problems_of_changes(values)


def require_duckdb() -> None:
    """See `check_installed`."""
    check_installed("penstock.duckdb needs", "duckdb", "penstock[duckdb]")


OPTIONS = options_of(DuckDbOptions)
PREFIXES = prefixes_of(DuckDbOptions)
