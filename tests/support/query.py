"""A query of ids into a file table, with a store: the query of the conformance suite for file tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
from tests.support.lakes import IDS, LakeTable, ids_alone

from penstock import testing
from penstock.committers.contract import (
    Batch,
    Committable,
    DataFile,
    DataFiles,
    Manifest,
    ManifestState,
    Mode,
)
from penstock.committers.file_tables.manifest import LakeManifest, build_manifest
from penstock.committers.protocol.commit_runner import Retry
from penstock.committers.protocol.two_phase import TwoPhaseCommitter
from penstock.committers.store.contract import ManifestStore
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.committers.target import PayloadCommitter
from penstock.datasource.file_table import FileTable
from penstock.datasource.planning.batch_plan import BatchPlan, CommittableMessage
from penstock.datasource.planning.plan import store_url
from penstock.testing.conformance import query as conformance

Ids = Sequence[int]
Plan = BatchPlan


class Written(list[CommittableMessage]):
    """The messages of the tasks of one batch."""

    @property
    def batch(self) -> Batch:
        return self[0].committable.batch

    @property
    def committables(self) -> list[Committable[DataFiles]]:
        return conformance.committables(self)

    @property
    def files(self) -> tuple[DataFile, ...]:
        return tuple(file for committable in self.committables for file in committable.payload or ())

    @property
    def paths(self) -> set[str]:
        return {file.path for file in self.files}

    @property
    def content(self) -> LakeManifest:
        content: LakeManifest = self[0].targets[0].content
        return content

    @property
    def manifest(self) -> Manifest:
        return build_manifest(self.batch, self.content.with_files(self.files))


@dataclass(frozen=True)
class Query(conformance.Query):
    """Rows may be given as ids alone: all other columns of `schema` are NULL then."""

    mode: Mode = "append"
    schema: pa.Schema = IDS

    @property
    def lake(self) -> LakeTable:
        return cast("LakeTable", self.harness)

    @property
    def evolving(self) -> Query:
        return self.with_options(schemaEvolution="addColumns")

    def target(self) -> FileTable:
        return cast("FileTable", self.sink().open_table())

    def two_phase(
        self, store: ManifestStore, table: PayloadCommitter[DataFiles] | None = None, attempts_max: int = 20
    ) -> TwoPhaseCommitter[DataFiles]:
        """The committer of a new process, without waits."""
        return TwoPhaseCommitter(
            store, table or self.target(), Retry(attempts_max=attempts_max), sleep=lambda _seconds: None
        )

    def plan(
        self,
        store: SqlManifestStore,
        batch: Batch,
        schema: pa.Schema | None = None,
        *,
        overwrite: bool | None = None,
    ) -> Plan:
        overwrites = self.mode == "overwrite" if overwrite is None else overwrite
        return super().plan(store, batch, schema or self.schema, overwrite=overwrites)

    def plan_of(self, batch_id: int, offsets: object = "", schema: pa.Schema | None = None) -> Plan:
        """The plan of the batch, whatever is pending."""
        planned = self.target().plan_batch(schema or self.schema, self.mode, batch_id)
        return BatchPlan.of_one_target(self.batch(batch_id, offsets), planned.writers, planned.content)

    def write(self, plan: Plan, parts: Sequence[pa.Table | Ids], run_id: str = "r1") -> Written:
        return Written(super().write(plan, [self.rows(part) for part in parts], run_id))

    def rows(self, part: pa.Table | Ids) -> pa.Table:
        return part if isinstance(part, pa.Table) else ids_alone(self.schema, part)

    def run(
        self,
        store: SqlManifestStore,
        batch: Batch,
        *parts: pa.Table | Ids,
        run_id: str = "r1",
        overwrite: bool | None = None,
    ) -> Written:
        tables = [self.rows(part) for part in parts]
        written = self.write(self.plan(store, batch, tables[0].schema, overwrite=overwrite), tables, run_id)
        self.commit(store, written)
        return written

    def states(self, store: SqlManifestStore) -> dict[int, ManifestState]:
        """The states of all batches, by batch id in ascending order."""
        records = store.history(self.stream, 1000)
        return {record.batch.batch_id: record.state for record in reversed(records)}

    def problems(self, ids: Ids) -> list[str]:
        """What is wrong with a table that is to hold each of these ids once."""
        return testing.check(self.lake, f"(SELECT unnest({list(ids)}::BIGINT[]) AS id)").problems

    def holds(self, store: SqlManifestStore, ids: Ids) -> bool:
        """Return True if the table holds each of these ids once and no batch is pending."""
        return self.problems(ids) == [] and not store.pending(self.stream)


@dataclass
class Batches:
    """The batches of a query one after the other, with the store that its options name."""

    query: Query
    next_batch: int = 0

    def run(self, rows: pa.Table | Ids, schema: pa.Schema | None = None) -> None:
        """
        Args:
            schema: of the query, if Spark hands over its rows otherwise
        """
        with open_store(store_url(self.query.sink().options)) as store:
            rows = self.query.rows(rows)
            plan = self.query.plan(store, self.query.batch(self.next_batch), schema or rows.schema)
            assert plan.writers is not None, "the batch is in the table already"
            self.query.commit(store, self.query.write(plan, [rows]))
        self.next_batch += 1
