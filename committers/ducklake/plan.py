"""Checks made before any row is written: the DuckLake, the table, its columns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from ..contract import Mode
from ..dry_runs import before_creating, in_dry_run
from ..errors import ConfigurationError, RetryableError, TableNotSupportedError
from ..file_tables.evolution import Narrowing
from ..file_tables.manifest import LakeManifest
from ..postgres.address import quoted
from . import fence
from .address import DuckLakeAddress
from .connection import Lake, LakeServer, commit, is_conflict
from .table import (
    KIND,
    RESERVED,
    LakeTable,
    arrow_schema,
    check_supported,
    columns_of,
    data_path_problem,
    encode_schema,
    files_location,
    load_if_there,
    match,
    path_problem,
    settings_of,
    unsupported,
)

_ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What the query asks for."""

    data_path: str = ""
    create: bool = True
    evolve: bool = False
    partition_by: tuple[str, ...] | None = None
    """Partition columns; None: those of the table, or none if it is created."""
    narrows: Narrowing = Narrowing.NONE
    """See `match`."""


@dataclass(frozen=True, slots=True)
class LakePlan:
    content: LakeManifest
    """Without mode, origins and files."""
    schema: pa.Schema
    location: str
    created: bool = False


def plan(server: LakeServer, rows: pa.Schema, mode: Mode, options: PlanOptions) -> LakePlan:
    """Plan a batch. Create DuckLake, table and fence table if they do not exist.

    Raises:
        ConfigurationError: something does not exist and may not be created.
        SchemaMismatchError: the columns do not fit.
        TableNotSupportedError: files cannot be added to the table.
        RetryableError: the catalog cannot be reached now.
    """
    if problem := data_path_problem(options.data_path or "/"):
        raise TableNotSupportedError(
            f"The DuckLake table {server.address.uri} cannot be written: {problem}. Nothing was written."
        )
    so, address = "Nothing was written", server.address
    create = options.create and bool(options.data_path) and not in_dry_run()
    created = False
    for _ in range(_ATTEMPTS_MAX):
        with server.attached(so, data_path=options.data_path, create=create, new_columns=rows.names) as lake:
            if lake is None:
                if options.create and options.data_path:
                    before_creating(f"DuckLake of {address.uri}")
                raise _no_lake(address, options)
            lake.begin()
            table = load_if_there(lake, address)
            if table is not None and fence.is_there(lake, address):
                return replace(_plan(lake, address, table, rows, mode, options), created=created)
            if table is not None:
                # its errors come before any change
                planned = _plan(lake, address, table, rows, mode, options)
                if in_dry_run():
                    return planned
            else:
                _create(lake, address, rows, options)
                before_creating(f"DuckLake table {address.uri}")
            fence.create(lake, address)
            error = commit(lake)
            if error is None:
                created = created or table is None
            elif not is_conflict(error) and "already exists" not in str(error):
                raise server.failed(error, so)
    raise RetryableError(
        f"The DuckLake table {address.uri} was not created, because other processes changed the catalog each "
        "time. Nothing was written. Start the query again."
    )


def _no_lake(address: DuckLakeAddress, options: PlanOptions) -> ConfigurationError:
    remedy = "Fix the option catalog" if options.create else "Create it, or fix the option catalog"
    more = "" if options.data_path or not options.create else ", or give dataPath to create a DuckLake"
    return ConfigurationError(f"There is no DuckLake for {address.uri}. Nothing was written. {remedy}{more}.")


def _create(lake: Lake, address: DuckLakeAddress, rows: pa.Schema, options: PlanOptions) -> None:
    if not options.create:
        raise ConfigurationError(
            f"There is no DuckLake table {address.uri}, and createTable=false. Create it, or fix the option "
            "table."
        )
    settings = settings_of(lake)
    problem = unsupported(settings)
    if options.partition_by and not problem:
        problem = path_problem(settings["data_path"], rows.names)
    if problem:
        raise TableNotSupportedError(
            f"The DuckLake table {address.uri} cannot be created: {problem}. Nothing was written."
        )
    RESERVED.check(rows.names, f"DuckLake table {address.uri}")
    columns = ", ".join(f"{quoted(one.name)} {one.type}" for one in columns_of(lake, rows, address))
    lake.rows(f"CREATE SCHEMA IF NOT EXISTS {lake.name}.{quoted(address.schema)}")
    table = lake.table(address.schema, address.table)
    lake.rows(f"CREATE TABLE {table} ({columns})")
    if options.partition_by:
        lake.rows(f"ALTER TABLE {table} SET PARTITIONED BY ({', '.join(map(quoted, options.partition_by))})")


def _plan(
    lake: Lake, address: DuckLakeAddress, table: LakeTable, rows: pa.Schema, mode: Mode, options: PlanOptions
) -> LakePlan:
    check_supported(table, address)
    asked, has = options.partition_by, table.partition_by
    if asked is not None and [name.lower() for name in asked] != [name.lower() for name in has]:
        raise ConfigurationError(
            f"partitionBy asks for {', '.join(asked)}, but the DuckLake table {address.uri} is partitioned "
            f"by {', '.join(has) or 'no column'}. Nothing was written. Omit partitionBy to use the table's "
            "partitioning, or write another table."
        )
    given = columns_of(lake, rows, address)
    matched = match(given, table, address, evolve=options.evolve, narrows=options.narrows)
    if options.narrows is Narrowing.ANY:
        rows = pa.schema([field for field, column in zip(rows, matched, strict=True) if column is not None])
        matched = [column for column in matched if column is not None]
        given = columns_of(lake, rows, address)
    new = tuple([one.name for one, column in zip(given, matched, strict=True) if column is None])
    RESERVED.check(new, f"DuckLake table {address.uri}")
    if has and (problem := path_problem(table.data_path, new)):
        raise TableNotSupportedError(
            f"The DuckLake table {address.uri} cannot be written: {problem}. Nothing was written."
        )
    schema = arrow_schema(lake, rows, matched, address)
    content = LakeManifest(
        kind=KIND,
        mode=mode,
        table_id=table.table_id,
        table_version=table.snapshot,
        schema_json=encode_schema(schema),
        new_columns=new,
        partition_by=table.partition_by,
        files=(),
    )
    return LakePlan(content, schema, files_location(table.data_path, address))
