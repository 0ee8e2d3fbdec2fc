"""A Postgres table that a query writes, and what Spark and the sink do for a batch of it. All is real."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pyarrow as pa

from penstock.committers.contract import Batch, StreamKey
from penstock.committers.postgres.staging import StagingTables
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.batch_plan import BatchPlan, CommittableMessage
from penstock.datasource.committing import abort_batch, commit_batch
from penstock.datasource.planning import plan_batch
from penstock.datasource.postgres.options import PostgresOptions
from penstock.datasource.postgres.sink import PostgresSink
from penstock.datasource.task import TaskAttempt

IDS = pa.schema([("id", pa.int64())])

Messages = list[CommittableMessage[Any, Any]]


@dataclass(frozen=True)
class PostgresQuery:
    """One query that writes rows into one table.

    Args:
        url: of a database with an empty schema, which it names in its `options`
    """

    url: str
    query_id: str = "q1"
    options: dict[str, str] = field(default_factory=dict)

    @property
    def schema(self) -> str:
        (options,) = parse_qs(urlsplit(self.url).query)["options"]
        return options.rpartition("=")[2]

    def sink(self, **options: str) -> PostgresSink:
        given = {"url": self.url, "dbtable": f"{self.schema}.events", "checkpointLocation": "/none"}
        return PostgresSink(PostgresOptions.parse({**given, **self.options, **options}))

    def batch(self, batch_id: int, offsets: object = "") -> Batch:
        digest = hashlib.sha256(f"{batch_id} {offsets}".encode()).hexdigest()
        return Batch(StreamKey(self.query_id, self.sink().table_uri), batch_id, digest)

    def plan(
        self,
        store: SqlManifestStore,
        batch: Batch,
        rows: pa.Table,
        *,
        overwrite: bool = False,
        **options: str,
    ) -> BatchPlan[Any, Any]:
        return plan_batch(self.sink(**options), store, batch, rows.schema, overwrite)

    def write(self, plan: BatchPlan[Any, Any], parts: Sequence[pa.Table], run_id: str = "r1") -> Messages:
        """What the tasks do, one for each of `parts`."""
        return [
            plan.write(part.to_batches(), task(plan.batch, number, run_id))
            for number, part in enumerate(parts)
        ]

    def commit(self, store: SqlManifestStore, messages: Messages) -> None:
        """Spark's side of phase two: a commit that raises is followed by an abort with all messages."""
        try:
            commit_batch(self.sink(), store, messages)
        except Exception:
            abort_batch(self.sink(), messages)
            raise

    def run(
        self,
        store: SqlManifestStore,
        batch: Batch,
        *parts: pa.Table,
        run_id: str = "r1",
        overwrite: bool = False,
        **options: str,
    ) -> Messages:
        """One batch from its plan to its mark."""
        plan = self.plan(store, batch, parts[0], overwrite=overwrite, **options)
        messages = self.write(plan, parts, run_id)
        self.commit(store, messages)
        return messages

    # What others see and do -----------------------------------------------------------------------

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run by another user of the database. Unqualified names are in the query's schema."""
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            cursor = connection.execute(statement, values or None)
            return list(cursor.fetchall()) if cursor.description else []

    def ids(self) -> list[int]:
        return [row[0] for row in self.sql("SELECT id FROM events ORDER BY id")]

    def staged(self) -> list[str]:
        """Names of the staging tables."""
        return [
            row[0]
            for row in self.sql(
                "SELECT tablename FROM pg_tables WHERE schemaname = %s "
                "AND tablename ~ '^penstock_[0-9a-f]{12}_'",
                self.schema,
            )
        ]


def ids(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())}, schema=IDS)


def task(batch: Batch, number: int = 0, run_id: str = "r1") -> TaskAttempt:
    return TaskAttempt(number, number, run_id, batch.stream.query_id, batch.batch_id)


def payloads(messages: Messages) -> list[StagingTables]:
    return [message.committable.payload for message in messages if message.committable.payload is not None]


@contextmanager
def commit_answers(answer: Callable[[psycopg.Connection], None]) -> Iterator[None]:
    """Inside the block the COMMIT of a committer goes as `answer` does it, once."""
    from penstock.committers.postgres import committer

    real, left = committer._commit, [answer]

    def commit(connection: psycopg.Connection) -> psycopg.Error | None:
        if not left:
            return real(connection)
        try:
            left.pop()(connection)
        except psycopg.Error as error:
            return error
        return None

    committer._commit = commit
    try:
        yield
    finally:
        committer._commit = real
