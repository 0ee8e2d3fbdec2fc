"""Checks the table before any task of a batch starts, and creates it if it does not exist."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pyarrow as pa

from ..changes.history import check_history
from ..contract import Changes
from ..errors import ConfigurationError, SchemaMismatchError
from ..file_tables.evolution import Narrowing
from ..file_tables.table_changes import dropped
from .names import RESERVED
from .properties import KEY_TYPES, PARTITION_TYPES, HudiTable, NewHudiTable
from .schema import arrow_schema, avro_record, new_columns
from .table import HudiTableFiles


@dataclass(frozen=True, slots=True)
class HudiPlan:
    """How the tasks of a batch write."""

    table: HudiTable
    instant: str
    schema: pa.Schema
    """The columns of the files, without Hudi's own. Columns of the record key are NOT NULL."""
    schema_json: str
    new_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the query asks for. None: as the table is."""

    may_create: bool
    evolve: bool
    narrows: Narrowing
    name: str
    partition_by: tuple[str, ...] | None
    record_key: tuple[str, ...] | None
    is_hive_style: bool | None
    version: int | None
    changes: Changes | None = None


def plan(files: HudiTableFiles, rows: pa.Schema, wanted: Wanted, batch_id: int) -> HudiPlan:
    """
    Raises:
        ConfigurationError: the table does not exist and may not be created, or is not as the options say.
        SchemaMismatchError: the rows do not fit the table.
        TableNotSupportedError: names what direct commits would violate.
        RetryableError: the table cannot be reached now.
    """
    given = avro_record(rows, wanted.name)
    table = files.load()
    if table is None:
        new = NewHudiTable(
            wanted.name,
            _with_case_of(wanted.partition_by or (), rows),
            _with_case_of(wanted.record_key or _identity(wanted), rows),
            wanted.is_hive_style is not False,
            wanted.version or 6,
        )
        _check_columns(rows, new.partition_by, new.record_key)
        _check_keys(files.uri, new.record_key, wanted.changes)
        RESERVED.check(rows.names, f"Hudi table {files.uri}")
        files.create(rows, new, allowed=wanted.may_create, batch_id=batch_id)
        table = files.load()
    if table is None:
        raise dropped(f"Hudi table {files.uri}")
    _check_as_wanted(files.uri, table, wanted)
    timeline = files.recent_timeline()
    current = files.schema(table, timeline) or given
    if wanted.changes is not None and wanted.changes.history is not None:
        check_history(wanted.changes.history, [one["name"] for one in current["fields"]])
    _check_keys(files.uri, table.record_key, wanted.changes)
    added = new_columns(given, current, files.uri, evolve=wanted.evolve, narrows=wanted.narrows)
    fields = [*current["fields"], *(field for field in given["fields"] if field["name"] in added)]
    record = {**current, "fields": fields}
    if not timeline.commits:
        files.begin_timeline(table, record)
        timeline = files.timeline()
    schema = arrow_schema(record)
    _check_columns(schema, table.partition_by, table.record_key)
    return HudiPlan(
        table=table,
        instant=files.reserve_instant(table, timeline),
        schema=pa.schema(
            [one.with_nullable(one.name not in table.record_key and one.nullable) for one in schema]
        ),
        schema_json=json.dumps(record, separators=(",", ":")),
        new_columns=tuple(added),
    )


def _check_columns(schema: pa.Schema, partition_by: tuple[str, ...], record_key: tuple[str, ...]) -> None:
    problems = []
    for columns, types, what in (
        (record_key, KEY_TYPES, "the record key: strings and integers"),
        (partition_by, PARTITION_TYPES, "partitions: strings, integers, booleans and dates"),
    ):
        for name in columns:
            if name not in schema.names:
                problems.append(f"there is no column {name!r}; columns: {', '.join(schema.names)}")
            elif schema.field(name).type not in types:
                problems.append(f"{name!r} is {schema.field(name).type}, which is not allowed in {what}")
    if len(record_key) == 1 and len(partition_by) > 1:
        problems.append(
            "a record key of one column and several partition columns: versions of Hudi encode such keys "
            "differently. Give two columns, or no recordKey"
        )
    if problems:
        raise SchemaMismatchError(
            "The record key or the partitions of the Hudi table are not possible:\n  - "
            + "\n  - ".join(problems)
            + "\nFix recordKey and partitionBy. Nothing was written."
        )


def _check_as_wanted(uri: str, table: HudiTable, wanted: Wanted) -> None:
    """
    Raises:
        ConfigurationError: options for a new table contradict the table.
    """
    problems = [
        f"{option} asks for {', '.join(asked)}, but the table has {', '.join(has) or 'none'}"
        for option, asked, has in (
            ("partitionBy", wanted.partition_by, table.partition_by),
            ("recordKey", wanted.record_key, table.record_key),
        )
        if asked is not None and [one.lower() for one in asked] != [one.lower() for one in has]
    ]
    if wanted.is_hive_style not in (None, table.is_hive_style) and table.partition_by:
        problems.append(f"hiveStylePartitions={str(wanted.is_hive_style).lower()} is not how the table is")
    if wanted.version not in (None, table.version):
        problems.append(f"tableVersion={wanted.version}, but the table has version {table.version}")
    if problems:
        raise ConfigurationError(
            f"The Hudi table {uri} is not as the options say:\n  - " + "\n  - ".join(problems) + "\n"
            "Omit these options to use the table as it is, or write another table."
        )


def _identity(wanted: Wanted) -> tuple[str, ...]:
    return () if wanted.changes is None else wanted.changes.identity


def _check_keys(uri: str, record_key: tuple[str, ...], changes: Changes | None) -> None:
    """Check that changes find rows by the record key: it identifies a row for Hudi's writers, too.

    Raises:
        ConfigurationError: they do not.
    """
    keys = () if changes is None else changes.identity
    if changes is None or {one.lower() for one in keys} == {one.lower() for one in record_key}:
        return
    if not record_key:
        raise ConfigurationError(
            f"The Hudi table {uri} has no record key: its rows have generated keys, which name no row of a "
            "source, so writeMode=upsert is not possible. Nothing was written. Append to it, or copy its "
            f"rows to a table with the record key {', '.join(keys)}."
        )
    raise ConfigurationError(
        f"The record key of the Hudi table {uri} is {', '.join(record_key)}, and writeMode=upsert would "
        f"identify rows by {', '.join(keys)}. Nothing was written. Correct the option keys, or write another "
        "table. With history=true the record key has the column of validFrom in addition."
    )


def _with_case_of(names: tuple[str, ...], rows: pa.Schema) -> tuple[str, ...]:
    by_lower = {name.lower(): name for name in rows.names}
    return tuple(by_lower.get(name.lower(), name) for name in names)
