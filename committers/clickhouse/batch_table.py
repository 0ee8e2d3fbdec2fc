"""The rows of one batch, from the staging tables of its tasks into the table.

A commit gathers the rows in one table of the batch: it attaches the parts of all staging tables, which links
files and copies none. Then the fence names this table, and the batch is committed. After that its partitions
are moved into the destination, one by one. Readers see a partition of a batch as a whole.

Whoever reads the token moves what is left. A server that is killed while it moves a partition may keep the
parts on both sides. So the parts that have arrived are dropped from the table of the batch first, unless the
connection is the one of the decision and was never interrupted since. The column `PART` tells: each INSERT of
a task has a number of its own, and all its rows of one partition are in one part.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress

from .. import crash_points
from ..contract import Batch
from ..database.contract import Cursor
from ..database.staging import PREFIX, StagingComment, StagingTable, query_hash
from ..errors import NEXT_TRY, PenstockError, RetryableError, TableChangedError
from .address import ClickHouseAddress, literal, qualified, quoted
from .connection import NO_SUCH_PART, UNKNOWN_TABLE, ClickHouseError
from .table import PART, add_missing, columns_of, create_like, exist
from .times import server_time

_PARTS = """
SELECT partition_id, sum(rows) FROM system.parts
WHERE database = %s AND table = %s AND active AND rows > 0 GROUP BY 1
"""
"""A partition that was moved leaves an empty part."""


def gather(cursor: Cursor, address: ClickHouseAddress, batch: Batch, staged: Sequence[StagingTable]) -> str:
    """Create the table of a batch and return its name; empty if there are no rows.

    Raises:
        RetryableError: a staging table does not have the rows that its task has sent.
    """
    if not staged:
        return ""
    query_id = batch.stream.query_id
    name = f"{PREFIX}{query_hash(query_id, address.sql)}_{batch.batch_id}_0_{uuid.uuid4().hex[:10]}"
    create_like(cursor, address, name, str(StagingComment(server_time(cursor), query_id)))
    try:
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
    partitions = _rows_by_partition(cursor, staged.schema, staged.name)
    if sum(partitions.values()) != staged.rows:
        raise RetryableError(
            f"The staging table {staged.path} has {sum(partitions.values())} of the {staged.rows} rows that "
            f"its task has sent, so batch {batch.batch_id} of {batch.stream} was not committed. {NEXT_TRY}"
        )
    source = qualified(staged.schema, staged.name)
    attached = [f"ATTACH PARTITION ID {literal(partition)} FROM {source}" for partition in partitions]
    if attached:
        cursor.execute(f"ALTER TABLE {qualified(address.schema, name)} {', '.join(attached)}")


def is_waiting(cursor: Cursor, address: ClickHouseAddress, name: str) -> bool:
    """Return True if rows of a committed batch may have to be moved."""
    return bool(name) and name in exist(cursor, address.schema, [name])


def move(cursor: Cursor, address: ClickHouseAddress, name: str, batch_id: int, *, is_first: bool) -> None:
    """Move the rows of a committed batch into the table, and drop the table of the batch.

    Args:
        is_first: True if no part can be on both sides: the connection has made the decision, and was not
            interrupted since

    Raises:
        TableChangedError: a part of the rows that have arrived was deleted by somebody else.
        ClickHouseError: the server failed.
    """
    try:
        if not is_first:
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
