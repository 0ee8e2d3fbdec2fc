"""The rows of one batch, from the staging tables of its tasks into the table.

A commit gathers the rows in one table of the batch: it attaches the parts of all staging tables, which links
files and copies none. Of rows that are changed by key, it inserts the last one of each key. Then the fence
names this table, and the batch is committed. After that its partitions are moved into the destination, one by
one. Readers see a partition of a batch as a whole.

Whoever reads the token moves what is left. A server that is killed while it moves a partition may keep the
parts on both sides. So the parts that have arrived are dropped from the table of the batch first, unless the
connection is the one of the decision and was never interrupted since. The column `PART` tells: each INSERT of
a task has a number of its own, and all its rows of one partition are in one part. Rows that are changed by
key have no such number: if they are on both sides, the engine keeps one of them.
"""

from __future__ import annotations

import uuid
from contextlib import suppress

from .. import crash_points
from ..contract import Batch, Changes
from ..database.contract import Cursor
from ..database.rows_by_key import RowsByKey
from ..database.staging import DELETES, PREFIX, StagingComment, StagingTable, query_hash
from ..errors import NEXT_TRY, PenstockError, RetryableError, TableChangedError
from .address import ClickHouseAddress, literal, qualified, quoted
from .connection import NO_SUCH_PART, UNKNOWN_TABLE, ClickHouseError
from .table import DELETED, PART, VERSION, add_missing, columns_of, create_like, exist
from .times import server_time

_PARTS = """
SELECT partition_id, sum(rows) FROM system.parts
WHERE database = %s AND table = %s AND active AND rows > 0 GROUP BY 1
"""
"""A partition that was moved leaves an empty part."""
_SETTINGS = {
    "insert_allow_materialized_columns": 1,
    "insert_deduplicate": 0,
    "max_partitions_per_insert_block": 0,
    "optimize_on_insert": 0,
}


def gather(cursor: Cursor, address: ClickHouseAddress, batch: Batch, rows: RowsByKey, version: int) -> str:
    """Create the table of a batch and return its name; empty if there are no rows.

    Args:
        rows: those of its tasks
        version: of rows that are changed by key; 0: they have their own

    Raises:
        RetryableError: a staging table does not have the rows that its task has sent.
    """
    staged = rows.content.staged
    if not staged:
        return ""
    query_id = batch.stream.query_id
    name = f"{PREFIX}{query_hash(query_id, address.sql)}_{batch.batch_id}_0_{uuid.uuid4().hex[:10]}"
    create_like(cursor, address, name, str(StagingComment(server_time(cursor), query_id)))
    try:
        if isinstance(rows.content.mode, Changes):
            _insert_last_rows(cursor, address, name, batch, rows, version)
        else:
            for one in staged:
                _attach(cursor, address, name, batch, one)
    except (ClickHouseError, PenstockError):
        with suppress(ClickHouseError):  # then it is left to clean-up
            cursor.execute(f"DROP TABLE {qualified(address.schema, name)}")
        raise
    return name


def _attach(
    cursor: Cursor, address: ClickHouseAddress, name: str, batch: Batch, staged: StagingTable
) -> None:
    add_missing(cursor, staged.schema, staged.name, columns_of(cursor, address.schema, name))
    source = qualified(staged.schema, staged.name)
    partitions = _checked_partitions(cursor, batch, staged)
    attached = [f"ATTACH PARTITION ID {literal(partition)} FROM {source}" for partition in partitions]
    if attached:
        cursor.execute(f"ALTER TABLE {qualified(address.schema, name)} {', '.join(attached)}")


def _insert_last_rows(
    cursor: Cursor, address: ClickHouseAddress, name: str, batch: Batch, rows: RowsByKey, version: int
) -> None:
    """Insert the last row of each key, over all batches of the manifest. No merge may remove deletions before
    they are moved.
    """
    for one in rows.content.staged:
        _checked_partitions(cursor, batch, one)
    sql = qualified(address.schema, name)
    cursor.execute(f"ALTER TABLE {sql} MODIFY SETTING min_age_to_force_merge_seconds = 0")
    names = [quoted(column) for column, _ in rows.content.columns]
    given, taken = [*names, DELETED], [f"l.{one}" for one in (*names, DELETES)]
    if version:
        given, taken = [*given, VERSION], [*taken, literal(version)]
    settings = ", ".join(f"{setting} = {value}" for setting, value in _SETTINGS.items())
    cursor.execute(
        f"INSERT INTO {sql} ({', '.join(given)}) SELECT {', '.join(taken)} "
        f"FROM {rows.last(rows.content.staged)} SETTINGS {settings}"
    )


def _checked_partitions(cursor: Cursor, batch: Batch, staged: StagingTable) -> dict[str, int]:
    """Return the rows of a staging table by partition, if it has all."""
    partitions = _rows_by_partition(cursor, staged.schema, staged.name)
    if sum(partitions.values()) != staged.rows:
        raise RetryableError(
            f"The staging table {staged.path} has {sum(partitions.values())} of the {staged.rows} rows that "
            f"its task has sent, so batch {batch.batch_id} of {batch.stream} was not committed. {NEXT_TRY}"
        )
    return partitions


def is_waiting(cursor: Cursor, address: ClickHouseAddress, name: str) -> bool:
    """Return True if rows of a committed batch may have to be moved."""
    return bool(name) and name in exist(cursor, address.schema, [name])


def move(cursor: Cursor, address: ClickHouseAddress, name: str, batch_id: int, *, may_repeat: bool) -> None:
    """Move the rows of a committed batch into the table, and drop the table of the batch.

    Args:
        may_repeat: True if no part can be on both sides, as the connection has made the decision and was not
            interrupted since; or if that does no harm

    Raises:
        TableChangedError: a part of the rows that have arrived was deleted by somebody else.
        ClickHouseError: the server failed.
    """
    try:
        if not may_repeat:
            _drop_arrived(cursor, address, name)
        for partition in _rows_by_partition(cursor, address.schema, name):
            source = qualified(address.schema, name)
            cursor.execute(
                f"ALTER TABLE {source} MOVE PARTITION ID {literal(partition)} TO TABLE {address.sql}"
            )
            crash_points.reach("clickhouse.moved", batch_id)
        if left := _rows_by_partition(cursor, address.schema, name):
            raise RetryableError(f"{sum(left.values())} rows of batch {batch_id} wait in {name}. {NEXT_TRY}")
        cursor.execute(f"DROP TABLE IF EXISTS {qualified(address.schema, name)}")
    except ClickHouseError as error:
        if error.code != UNKNOWN_TABLE or exist(cursor, address.schema, [name]):
            raise  # else another process has moved all


def _drop_arrived(cursor: Cursor, address: ClickHouseAddress, name: str) -> None:
    waiting, part = qualified(address.schema, name), quoted(PART)
    numbers = f"SELECT DISTINCT {part} FROM {waiting}"
    for partition in _rows_by_partition(cursor, address.schema, name):
        where = f"WHERE _partition_id = {literal(partition)}"
        parts = cursor.execute(
            f"SELECT _part, {part}, count() FROM {waiting} {where} GROUP BY 1, 2"
        ).fetchall()
        arrived = dict(
            cursor.execute(
                f"SELECT {part}, count() FROM {address.sql} {where} AND {part} IN ({numbers}) GROUP BY 1"
            ).fetchall()
        )
        for _, number, rows in parts:
            if number in arrived and arrived[number] != rows:
                raise TableChangedError(
                    f"The {address.title} has {arrived[number]} of {rows} rows of an INSERT "
                    f"({PART} = {number}) whose partition {partition} was moved when the server died: "
                    "somebody has deleted rows since. Nothing was moved. Move the rest from "
                    f"{waiting} into the table by hand, and drop {waiting}."
                )
        for one in sorted({one for one, number, _ in parts if number in arrived}):
            try:
                cursor.execute(f"ALTER TABLE {waiting} DROP PART {literal(one)}")
            except ClickHouseError as error:
                if error.code not in NO_SUCH_PART:
                    raise  # else another process has dropped or moved it


def _rows_by_partition(cursor: Cursor, schema: str, name: str) -> dict[str, int]:
    return {partition: int(rows) for partition, rows in cursor.execute(_PARTS, (schema, name)).fetchall()}
