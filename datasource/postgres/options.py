"""Options of `penstock.postgres`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from ...committers.errors import ConfigurationError
from ...committers.postgres.address import parse_schema_name, parse_table_name
from ..options import common
from ..options.parsing import Option, Prefix, check, parse_options, storable, text

NAME = "penstock.postgres"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions(common.DeliveryOptions):
    """Options of `penstock.postgres`."""

    url: str = field(repr=False)
    table: tuple[str, str]
    """(schema, name)"""
    staging_schema: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> PostgresOptions:
        """Parse what Spark hands over.

        Raises:
            ConfigurationError: lists everything that is wrong, one sentence each.
        """
        of_files = {option.name.lower(): option.name for option in (*common.FILE_OPTIONS, _PARTITION_BY)}
        given = {key: value for key, value in options.items() if key.lower() not in {*of_files, "path"}}
        values, problems = parse_options(OPTIONS, PREFIXES, given)
        problems += [
            f"{of_files[key.lower()]} is an option of lake tables, and {NAME} writes no files: leave it out."
            for key in options
            if key.lower() in of_files
        ]
        if any(key.lower() == "path" for key in options):
            problems.append(
                'path is not an option: give .option("dbtable", ...) and .start() without a path.'
            )
        keys = {key.lower() for key in given}
        if "url" not in keys:
            problems.append('url is missing: .option("url", "postgresql://user@host:5432/database").')
        if "dbtable" not in keys:
            problems.append('dbtable is missing: name the table with .option("dbtable", "schema.table").')
        stored = storable(OPTIONS, given)
        problems += common.problems_of(values, stored, PREFIXES)
        check(NAME, problems)
        return cls(**values, given=stored)


def require_driver() -> None:
    """
    Raises:
        ConfigurationError: psycopg is not installed.
    """
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"penstock.postgres needs psycopg, which is not installed here ({error}). Run, for the driver "
            "and the executors: pip install 'penstock[postgres]'"
        ) from error


def _url(url: str) -> str:
    from ...committers.postgres.connection import settings_of

    settings_of(text(url))
    return url


OPTIONS = (
    Option(
        "url",
        "url",
        _url,
        "The database, as libpq takes it: `postgresql://user:password@host:5432/database`. User and password "
        "may come from libpq's environment (`PGUSER`, `PGPASSWORD`, `~/.pgpass`), on the executors, too.",
        is_secret=True,
    ),
    Option(
        "dbtable",
        "table",
        parse_table_name,
        'The table: `table` in the schema `public`, `schema.table`, or with capitals `"Schema"."Table"`.',
    ),
    Option(
        "stagingSchema",
        "staging_schema",
        parse_schema_name,
        "The schema of the staging tables. Default: that of the table.",
    ),
    *common.STREAM_OPTIONS,
    *common.DELIVERY_OPTIONS,
)

PREFIXES = (
    Prefix(
        "storage.",
        "storage_options",
        str.upper,
        "For a checkpoint in an object store, such as `storage.AWS_REGION`.",
    ),
)

_PARTITION_BY = Option("partitionBy", "", text, "")

_FIELDS = {option.field for option in OPTIONS} | {prefix.field for prefix in PREFIXES}
assert {f.name for f in fields(PostgresOptions)} >= _FIELDS
