"""Named points where tests kill the process: one at each step boundary of the protocol.

`docs/protocol.md` describes each point. In production `reach` does nothing. A test stops a process there in
one of two ways: in-process, with a handler that raises; or across processes, with

    PENSTOCK_PAUSE_AT="prepare.done@7"    point, and optionally the batch id
    PENSTOCK_PAUSE_FILE=/path/to/file     written when the point is reached

then the process waits to be killed, and exits if its parent exits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

STREAM_POINTS = (
    "table.created",
    "write.file_open",
    "write.files_closed",
    "prepare.start",
    "prepare.done",
    "evolve.done",
    "commit.start",
    "commit.landed",
    "mark.done",
    "recover.start",
    "recover.done",
)
"""Crash points of a query and of its restart."""

DELIVERY_POINTS = (
    "deliver.start",
    "compact.start",
    "compact.done",
    "deliver.prepared",
    "deliver.done",
)
"""Crash points of the delivery process. It also reaches `evolve.done`, `commit.start` and `commit.landed`.
The batch is the last one of the delivery.
"""

LETTER_POINTS = (
    "letters.start",
    "letters.landed",
    "letters.deleted",
)
"""Crash points while dead letters move from the store to their destination, which also reaches the points of
a commit. The batch is the one that the rows are from.
"""

SKIP_POINTS = ("skip.saved",)
"""Crash point of `penstock skip`, after the rows of the batch are in the dead-letter table. Saving them also
reaches the points of a commit.
"""

PAIR_POINTS = (
    "pair.rewritten",
    "pair.prepared",
    "pair.first",
    "pair.second",
)
"""Crash points of a compaction of two tables that share their files. The batch is one that the stream reaches
later, as in the names of the new files.
"""

PARTITION_POINTS = (
    "partitions.start",
    "partitions.added",
)
"""Crash points while a catalog gets the partitions of a batch of plain files, after `commit.landed`."""

PREPARED_POINTS = (
    "prepared.decided",
    "prepared.ended",
)
"""Crash points of a commit of prepared transactions, before `commit.landed`: the token is set; after each
transaction that was ended.
"""

CLICKHOUSE_POINTS = (
    "clickhouse.gathered",
    "clickhouse.decided",
    "clickhouse.moved",
)
"""Crash points of a commit into a ClickHouse table, before `commit.landed`: the rows are in one table; the
token is set; after each partition that was moved.
"""

RETIRE_POINTS = (
    "retire.start",
    "retire.related",
    "retire.files",
    "retire.records",
    "retire.done",
)
"""Crash points of `penstock retire`. The batch is the stream's last one."""

CRASH_POINTS = (
    *STREAM_POINTS,
    *DELIVERY_POINTS,
    *LETTER_POINTS,
    *SKIP_POINTS,
    *PAIR_POINTS,
    *PARTITION_POINTS,
    *PREPARED_POINTS,
    *CLICKHOUSE_POINTS,
    *RETIRE_POINTS,
)
"""The names of all steps at which a job can be killed. docs/testing.md says when each one is reached."""

Handler = Callable[[str, int], None]

_handler: Handler | None = None


def install(handler: Handler | None) -> None:
    """Call `handler(point, batch_id)` at every crash point of this process; None removes it."""
    global _handler
    _handler = handler


def reach(point: str, batch_id: int) -> None:
    """Called by the protocol code at the step boundary `point` of a batch."""
    assert point in CRASH_POINTS, point
    if _handler is not None:
        _handler(point, batch_id)
    elif os.environ.get("PENSTOCK_PAUSE_AT") in (point, f"{point}@{batch_id}"):
        _pause()


def _pause() -> None:
    parent = os.getppid()
    Path(os.environ["PENSTOCK_PAUSE_FILE"]).write_text(str(os.getpid()))
    while os.getppid() == parent:
        time.sleep(0.05)
    os._exit(137)
