"""The current state of a DuckLake table, and how the columns of a query and of files match it."""

from __future__ import annotations

import base64
import json
import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import pyarrow as pa

from ..arrow_ipc.reader import read_schema
from ..cleaning.deletion import local_root
from ..errors import ManifestCorruptError, SchemaMismatchError, TableNotSupportedError
from ..file_tables.evolution import Narrowing
from ..file_tables.folder_columns import columns_in_path
from ..file_tables.manifest import LakeManifest
from ..file_tables.reserved_names import ReservedNames
from ..file_tables.schema_diff import (
    FILES,
    QUERY,
    UNDO,
    DifferenceKind,
    SchemaColumn,
    compare,
    files_mismatch,
    problems_in,
    query_mismatch,
    without_case,
)
from ..file_tables.table_changes import check_same_id, dropped
from ..postgres.address import quoted
from .address import DuckLakeAddress
from .connection import Lake, LakeServer, column_types
from .storage import S3, is_on_s3
from .types import files_hold, holds, may_hold, normal, sql_type

KIND = "ducklake"
RESERVED = ReservedNames(
    "DuckLake writes columns with these names into files that it merges or updates",
    frozenset({"_ducklake_internal_row_id", "_ducklake_internal_snapshot_id"}),
)


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table in one snapshot."""

    table_id: str
    snapshot: int
    data_path: str
    columns: tuple[SchemaColumn[str], ...]
    defaults: frozenset[str]
    """Columns with a default."""
    partition_by: tuple[str, ...] = ()
    unsupported: str = ""
    """Why files cannot be added; empty if they can."""


def files_location(data_path: str, address: DuckLakeAddress) -> str:
    """Where tasks write the files: beside the data path.

    Below it, `ducklake_delete_orphaned_files` of any user would delete files that wait for their commit.
    """
    name = f"{quote(address.schema, safe='')}.{quote(address.table, safe='')}"
    return f"{data_path.rstrip('/')}.penstock/{name}"


def settings_of(lake: Lake) -> dict[str, str]:
    """Settings of the whole DuckLake."""
    return dict(lake.rows(f"SELECT key, value FROM {lake.metadata('ducklake_metadata')} WHERE scope IS NULL"))


def load_if_there(lake: Lake, address: DuckLakeAddress) -> LakeTable | None:
    """Load the table; None if it does not exist."""
    found = lake.find_table(address.schema, address.table)
    if not found:
        return None
    columns = lake.rows(f"DESCRIBE {lake.table(address.schema, address.table)}")
    settings = settings_of(lake)
    names = [name for name, *_ in columns]
    ((table_id, partitioning),) = found
    return LakeTable(
        table_id=table_id,
        snapshot=lake.snapshot(),
        data_path=settings["data_path"],
        columns=tuple(SchemaColumn(name, kind, null == "NO") for name, kind, null, *_ in columns),
        defaults=frozenset(name for name, _, _, _, default, _ in columns if default not in (None, "NULL")),
        partition_by=tuple(name for name, _ in partitioning or ()),
        unsupported=unsupported(settings)
        or _partition_problem(partitioning or (), settings["data_path"], names),
    )


def _partition_problem(partitioning: Sequence[Sequence[str]], data_path: str, columns: Sequence[str]) -> str:
    """Why files cannot be added to these partitions; empty if they can."""
    if any(transform != "identity" for _, transform in partitioning):
        keys = ", ".join(name if kind == "identity" else f"{kind}({name})" for name, kind in partitioning)
        return (
            f"it is partitioned by {keys}, and penstock.ducklake writes partitions of columns only: use a "
            "column with this value, or write the table with duckdb"
        )
    return path_problem(data_path, columns) if partitioning else ""


def path_problem(data_path: str, columns: Iterable[str]) -> str:
    """Why a partitioned table cannot have these columns; empty if it can."""
    problem = columns_in_path(data_path, columns)
    return problem and f"it is partitioned, and {problem}"


def unsupported(settings: dict[str, str]) -> str:
    """Why files cannot be added to any table of the DuckLake; empty if they can."""
    if settings.get("encrypted") == "true":
        return "the DuckLake is encrypted, and files that are added to it are not"
    return data_path_problem(settings["data_path"])


def data_path_problem(data_path: str) -> str:
    """Why files cannot be written to a data path; empty if they can."""
    if is_on_s3(data_path):
        is_bucket = not data_path.removeprefix(S3).strip("/").partition("/")[2]
        return f"its data path {data_path} is a whole bucket: use a folder of it" if is_bucket else ""
    if local_root(data_path) is None:
        return (
            f"its data path {data_path} is in an object store that penstock.ducklake does not support: use "
            "S3 (s3://) or a disk that driver and executors share"
        )
    if not posixpath.isabs(data_path):
        return f"its data path {data_path} is relative: create the DuckLake with an absolute DATA_PATH"
    return ""


def read_rows(server: LakeServer, column: str, value: str) -> pa.Table | None:
    """Return the rows with a value in a text column; None if the table does not exist.

    Raises:
        RetryableError: it cannot be read now.
    """
    address = server.address
    with server.attached("Nothing was read") as lake:
        if lake is None or load_if_there(lake, address) is None:
            return None
        table = lake.table(address.schema, address.table)
        found = lake.cursor.execute(f"FROM {table} WHERE {quoted(column)} = ?", [value])
        return found.to_arrow_table()


def check_supported(table: LakeTable, address: DuckLakeAddress) -> None:
    """
    Raises:
        TableNotSupportedError: names the feature.
    """
    if table.unsupported:
        raise TableNotSupportedError(
            f"The DuckLake table {address.uri} cannot be written: {table.unsupported}. Nothing was written."
        )


def check_same_table(table: LakeTable | None, table_id: str | None, address: DuckLakeAddress) -> LakeTable:
    """
    Raises:
        TableChangedError: it does not exist, or has another UUID than `table_id`.
    """
    if table is None:
        raise dropped(f"DuckLake table {address.uri}")
    check_same_id(f"DuckLake table {address.uri}", table.table_id, table_id, name="UUID")
    return table


# Columns ------------------------------------------------------------------------------------------


def columns_of(lake: Lake, rows: pa.Schema, address: DuckLakeAddress) -> list[SchemaColumn[str]]:
    """Columns of the query, in DuckDB's types; nullable, because Spark's flags are only hints.

    Raises:
        SchemaMismatchError: names the columns that DuckLake has no type for.
    """
    types = [(column.name, sql_type(normal(column.type)), column.type) for column in rows]
    bad = [f"  - {name}: {data_type}" for name, kind, data_type in types if kind is None]
    lower = [name.lower() for name in rows.names]
    bad += [f"  - {name}: the name is there twice" for name in rows.names if lower.count(name.lower()) > 1]
    if bad or not rows.names:
        raise SchemaMismatchError(
            f"The DuckLake table {address.uri} cannot store these columns of the query:\n"
            + ("\n".join(bad) or "  - it has none")
            + "\nCast, rename or leave them out in the query. Nothing was written."
        )
    canonical = column_types(lake, [kind for _, kind, _ in types if kind is not None])
    return [SchemaColumn(name, kind) for name, kind in zip(rows.names, canonical, strict=True)]


_BY_VALUE = (DifferenceKind.NEW, DifferenceKind.TYPE)
"""With `Narrowing.ANY`, these depend on the values."""


def match(
    given: Sequence[SchemaColumn[str]],
    table: LakeTable,
    address: DuckLakeAddress,
    *,
    evolve: bool,
    narrows: Narrowing = Narrowing.NONE,
) -> list[SchemaColumn[str] | None]:
    """Return the table's column for each column of the query; None for a new one.

    Args:
        narrows: which columns of the table may also be smaller, or missing; the writer checks each value

    Raises:
        SchemaMismatchError: shows both schemas.
    """
    wording = {kind: text for kind, text in QUERY.items() if not (evolve and kind is DifferenceKind.NEW)}
    differences = list(compare(given, table.columns, may_hold if narrows else holds))
    if narrows is Narrowing.ANY:
        wording = {kind: text for kind, text in wording.items() if kind not in _BY_VALUE}
    problems = list(problems_in(differences, wording))
    problems += [
        f"{one.table[0].name!r} has a default in the table and is missing in the query, and rows of added "
        "files do not get it: select it in the query"
        for one in differences
        if one.kind is DifferenceKind.MISSING and one.table[0].name in table.defaults
    ]
    if problems:
        raise query_mismatch(f"DuckLake table {address.uri}", problems, given, table.columns)
    key = without_case((one.name for one in given), (one.name for one in table.columns))
    columns = {key(one.name): one for one in table.columns}
    return [columns.get(key(one.name)) for one in given]


def arrow_schema(
    lake: Lake, rows: pa.Schema, columns: Sequence[SchemaColumn[str] | None], address: DuckLakeAddress
) -> pa.Schema:
    """The columns of the files: the query's, with the table's names and types."""
    names = [one.name for one in columns if one is not None]
    listed = ", ".join('"' + name.replace('"', '""') + '"' for name in names) or "1"
    table = lake.table(address.schema, address.table)
    known = lake.cursor.execute(f"SELECT {listed} FROM {table} LIMIT 0").to_arrow_table().schema
    return pa.schema(
        [
            pa.field(field.name, normal(field.type))
            if one is None
            else pa.field(one.name, normal(known.field(one.name).type), nullable=not one.is_required)
            for field, one in zip(rows, columns, strict=True)
        ]
    )


def encode_schema(schema: pa.Schema) -> str:
    """The form of the files' columns in a manifest."""
    return json.dumps({"arrow": base64.b64encode(schema.serialize().to_pybytes()).decode()})


def decode_schema(content: LakeManifest) -> pa.Schema:
    """
    Raises:
        ManifestCorruptError: the manifest has another content.
    """
    try:
        return read_schema(base64.b64decode(json.loads(content.schema_json)["arrow"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestCorruptError(
            f"A manifest has no columns of DuckLake files ({error}). Nothing was committed. Restore the "
            "store from a backup, or use the version of Penstock that prepared the batch."
        ) from error


def columns_to_add(
    lake: Lake, content: LakeManifest, table: LakeTable, address: DuckLakeAddress, batch: str
) -> list[SchemaColumn[str]]:
    """The planned new columns that the table does not have yet.

    Raises:
        SchemaMismatchError: the table was altered since, and no longer accepts the files.
    """
    schema = decode_schema(content)
    written = [
        SchemaColumn(column.name, column.type, not field.nullable)
        for column, field in zip(columns_of(lake, schema, address), schema, strict=True)
    ]
    found = list(compare(written, table.columns, files_hold))
    new = [column for one in found if one.kind is DifferenceKind.NEW for column in one.given]
    problems = list(problems_in(found, FILES))
    problems += [f"{one.name!r} was removed" for one in new if one.name not in content.new_columns]
    problems += [
        f"{one.table[0].name!r} now has a default, and is missing in the files"
        for one in found
        if one.kind is DifferenceKind.MISSING and one.table[0].name in table.defaults
    ]
    if table.partition_by != content.partition_by:
        before, now = (", ".join(one) or "no column" for one in (content.partition_by, table.partition_by))
        problems.append(f"it is now partitioned by {now}, and was by {before}")
    if problems:
        raise files_mismatch(
            f"DuckLake table {address.uri}",
            batch,
            problems,
            written,
            table.columns,
            f"{UNDO} DuckLake cannot make a type smaller again.",
        )
    return new
