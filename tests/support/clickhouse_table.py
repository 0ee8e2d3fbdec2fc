"""A table of a ClickHouse server that a query writes, read by statements of another connection."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, cast
from urllib.parse import urlsplit

import pyarrow as pa
from servers.clickhouse import ClickHouse
from tests.support.faults import in_next_call
from tests.support.harness import CRASH_POINTS

from penstock.committers.clickhouse import fence
from penstock.committers.clickhouse.connection import ClickHouseError
from penstock.committers.errors import PenstockError
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.clickhouse.stored import DESTINATION
from penstock.testing.conformance import SECRET, DestinationHarness, Lost, Promises
from penstock.testing.conformance.harness import ChangedRow
from penstock.testing.conformance.query import Query

KILLS_MIN = 10
OWN_POINTS = ("clickhouse.gathered", "clickhouse.decided", "clickhouse.moved")


class ClickHouseHarness(DestinationHarness):
    """The table `events` of a database of its own.

    Args:
        partition_by: of the table, when a query creates it
    """

    destination = DESTINATION
    promises = Promises(
        name="ClickHouse tables",
        payload="a staging table for each task",
        commit="one `ALTER TABLE` of the fence decides; then `MOVE PARTITION` shows the batch, partition by "
        "partition",
        token="the comment of a column of the table `penstock_fence`",
        shows_whole_batches=False,
        changes="rows that replace those of their key for readers with `FINAL`; a deletion is a row that "
        "they do not show",
        moves_keys=False,
        overwrites=False,
        narrows=True,
        quarantines=True,
        reserved_columns=("penstock_part", "penstock_version", "penstock_deleted"),
        shows_secrets_to_tasks=True,
        crash_points=(*CRASH_POINTS, *OWN_POINTS),
    )
    small_buffer: ClassVar[Mapping[str, str]] = {"bufferSize": "4mb"}

    def __init__(self, server: ClickHouse | None = None) -> None:
        self._server = server
        self._url = f"http://me:{SECRET}@localhost:8123/db" if server is None else server.new_url()
        self.database = urlsplit(self._url).path[1:]

    @property
    def options(self) -> dict[str, str]:
        return {"url": self._url, "dbtable": "events"}

    @property
    def secret_options(self) -> dict[str, str]:
        return self.options  # its password is SECRET

    @property
    def unreachable_options(self) -> dict[str, str]:
        return {**self.options, "url": f"http://me:{SECRET}@127.0.0.1:{self.unreachable_port}/db"}

    def options_by(self, column: str) -> Mapping[str, str]:
        return {"partitionBy": {"text": "cityHash64(text) % 8", "day": "toYear(day)"}[column]}

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        """Run a query; `{db}` is the database."""
        assert self._server is not None
        return self._server.sql(query.replace("{db}", self.database))

    def tables(self) -> list[str]:
        found = self.sql("SELECT name FROM system.tables WHERE database = '{db}' ORDER BY name")
        return [name for (name,) in found]

    def ids(self) -> list[int]:
        if "events" not in self.tables():
            return []
        return [int(row_id) for (row_id,) in self.sql("SELECT id FROM {db}.events")]

    def changed_rows(self) -> Sequence[ChangedRow]:
        return cast("Sequence[ChangedRow]", self.sql("SELECT id, n, text FROM {db}.events FINAL"))

    def uncommitted(self) -> Collection[str]:
        return [name for name in self.tables() if name.startswith("penstock_") and name != "penstock_fence"]

    def delete_uncommitted(self) -> None:
        for name in self.uncommitted():
            self.sql(f"DROP TABLE {{db}}.{name}")

    def losing(self, lost: Lost) -> AbstractContextManager[None]:
        def send(real: Callable[..., None], cursor: Any, statement: str) -> None:
            if lost == "response":
                real(cursor, statement)
            raise ClickHouseError("RemoteDisconnected: no answer")

        return in_next_call(fence, "send", send)

    def append(self, row_id: int) -> None:
        self.sql(f"INSERT INTO {{db}}.events (id) SELECT {row_id}")

    def drop(self) -> None:
        self.sql("DROP TABLE {db}.events")

    def recreate(self) -> None:
        self.drop()
        self.sql(
            "CREATE TABLE {db}.events (id Nullable(Int64), penstock_part UInt64 MATERIALIZED 0) "
            "ENGINE = MergeTree ORDER BY tuple()"
        )

    def roll_back(self) -> None:
        """After a restore, only the fence says which batches the table has."""
        found = self.sql(
            "SELECT name, comment FROM system.columns WHERE database = '{db}' AND table = 'penstock_fence'"
        )
        for name, comment in found:
            if "batch_id" in comment:
                before = comment.split('"batch_id": ')[1].split(",")[0]
                changed = comment.replace(f'"batch_id": {before}', f'"batch_id": {int(before) - 1}')
                self.sql(f"ALTER TABLE {{db}}.penstock_fence COMMENT COLUMN {name} '{changed}'")


@contextmanager
def killed_at_random(server: ClickHouse, seed: int) -> Iterator[None]:
    """In the block a thread kills the server after random times, and starts it again."""
    rng, stop, kills = random.Random(seed), threading.Event(), 0

    def kill() -> None:
        nonlocal kills
        while not stop.wait(rng.uniform(0.05, 1.5)):
            server.kill()
            kills += 1
            server.start()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        stop.set()
        killer.join()
    assert kills >= KILLS_MIN, kills


def run_until_committed(store: SqlManifestStore, of: Query, batch_id: int, *tasks: pa.Table) -> None:
    """Write and commit a batch, again and again, as a query does that is started again."""
    deadline = time.monotonic() + 120
    while True:
        try:
            of.run(store, of.batch(batch_id), *tasks, run_id=f"r{time.monotonic_ns()}")
        except PenstockError:
            assert time.monotonic() < deadline, f"batch {batch_id}"
        else:
            return
