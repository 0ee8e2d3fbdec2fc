"""Options of `penstock.duckdb`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ...committers.duckdb.address import parse_path, parse_table_name
from ...committers.errors import check_installed
from ...committers.file_tables.evolution import SchemaEvolution
from ..options.changes import ChangeOptions, problems_of_changes
from ..options.declaring import declared, option, options_of, passed_on, prefixes_of
from ..options.delivery import DeliveryOptions
from ..options.file_tables import refused_file_options
from ..options.parsing import count, text
from ..options.stream import parse_as

NAME = "penstock.duckdb"


@dataclass(frozen=True, slots=True, kw_only=True)
class DuckDbOptions(ChangeOptions, DeliveryOptions):
    """Options of `penstock.duckdb`."""

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
    storage_options: Mapping[str, str] = passed_on(
        "storage.", str.upper, "For a checkpoint in an object store, such as `storage.AWS_REGION`."
    )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> DuckDbOptions:
        """Parse the options that Spark passes; see `parse_as`."""
        refused = refused_file_options(NAME, OPTIONS, "dbtable")
        del refused["path"]
        return parse_as(
            cls,
            NAME,
            options,
            examples={"path": "/data/events.duckdb", "dbtable": "events"},
            refused=refused,
            problems_of_values=problems_of_changes,
        )


def require_duckdb() -> None:
    """See `check_installed`."""
    check_installed("penstock.duckdb needs", "duckdb", "penstock[duckdb]")


OPTIONS = options_of(DuckDbOptions)
PREFIXES = prefixes_of(DuckDbOptions)
