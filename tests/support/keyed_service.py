"""A service in memory that has one row for each key, and what sends changes to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from penstock.committers.contract import AttemptId, Batch, Changes, Manifest, StreamKey
from penstock.committers.progress import with_store
from penstock.committers.requests.contract import RowPlace
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.requests.change_options import RequestChangeOptions
from penstock.datasource.requests.changing import ChangingRequests
from penstock.datasource.requests.options import RequestOptions
from penstock.datasource.requests.sink import RequestSink, RequestTarget
from penstock.writers.requests.entry import Entry
from penstock.writers.requests.opening import open_writer
from penstock.writers.requests.results import DELIVERED, Fatal, Result

STREAM = StreamKey("q", "memory://table")
Row = dict[str, Any]


@dataclass
class KeyedService:
    """Applies requests when it answers them; the first one takes longest."""

    rows: dict[int, Row] = field(default_factory=dict)
    sent: list[tuple[str, int]] = field(default_factory=list)
    """Operation and id of each entry, as they arrive."""
    fails_after: int | None = None
    """Number of entries after which no request is answered."""

    async def submit(self, entries: Sequence[Entry[Any]]) -> Sequence[Result] | Fatal:
        if self.fails_after is not None and len(self.sent) + len(entries) > self.fails_after:
            return Fatal("down", "no answer")
        latency_s = 0.0 if self.sent else 0.02
        self.sent += [(one.payload[0], one.payload[1]["id"]) for one in entries]
        await asyncio.sleep(latency_s)
        for one in entries:
            operation, row = one.payload
            if operation == "delete":
                self.rows.pop(row["id"], None)
            elif operation == "put":
                self.rows[row["id"]] = row
            else:
                self.rows.setdefault(row["id"], {}).update(row)
        return [DELIVERED] * len(entries)

    async def close(self) -> None:
        """Nothing is open."""


@dataclass
class KeyedRequests:
    """See `Requests` and `Changeable`. It takes partial rows."""

    service: KeyedService
    options: Options

    def check_schema(self, rows: pa.Schema) -> None:
        assert "id" in rows.names

    def check_changes(self, changes: Changes, rows: pa.Schema) -> None:
        """All are taken."""

    def why_whole(self, rows: pa.Schema) -> str:
        return ""

    def checker(self) -> Callable[[pa.RecordBatch], object]:
        return check

    def deletion_checker(self) -> Callable[[pa.RecordBatch], object]:
        return check

    def entries(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Entry[Any]]:
        return self.upserts(rows, place, [()] * rows.num_rows)

    def upserts(
        self, rows: pa.RecordBatch, place: RowPlace, kept: Sequence[Collection[str]]
    ) -> Sequence[Entry[Any]]:
        ids = place.ids(rows.num_rows)
        return [
            Entry(
                ("update" if some else "put", {name: row[name] for name in row if name not in some}),
                1,
                row_id,
                place.position + number,
            )
            for number, (row, some, row_id) in enumerate(zip(rows.to_pylist(), kept, ids, strict=True))
        ]

    def deletions(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Entry[Any]]:
        ids = place.ids(rows.num_rows)
        return [
            Entry(("delete", row), 1, row_id, place.position)
            for row, row_id in zip(rows.to_pylist(), ids, strict=True)
        ]

    def open_writer(self, on_acknowledged: Callable[[], None] = lambda: None) -> Any:
        return open_writer(self.service, self.options.writer_settings, on_acknowledged)


def check(rows: pa.RecordBatch) -> None:
    """All rows are accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(RequestChangeOptions, RequestOptions):
    NAME: ClassVar[str] = "penstock.memory"
    REQUIRED: ClassVar = {"checkpointLocation": "/c"}


class ChangedQuery:
    """A query of changes to the service. Rows are (id, n, text); without text, they delete."""

    def __init__(self, folder: Path, store: SqlManifestStore, **options: str) -> None:
        given = {
            "writemode": "upsert",
            "keys": "id",
            "orderby": "n",
            "deletewhen": "op = 'd'",
            "dropcolumns": "op",
            "rowlog": str(folder / "log"),
            "progresseveryseconds": "0",
            "maxbatchsize": "2",
        }
        (folder / "log").mkdir(exist_ok=True)
        self.service = KeyedService()
        self.store = store
        self.options = Options.parse({**given, **{key.lower(): value for key, value in options.items()}})
        self.changes = self.options.changes
        """The mode of the batches."""
        self._attempts = 0
        store.register_stream(STREAM, "memory")

    def target(self) -> RequestTarget:
        requests = KeyedRequests(self.service, self.options)
        target = RequestTarget(RequestSink("memory", STREAM.table_uri, self.options, requests))
        if self.changes != self.options.changes:
            assert self.changes is not None
            target._rows_to_requests = target._requests = ChangingRequests(requests, self.changes)
        return with_store(target, self.store)

    def manifest(self, batch_id: int, *parts: Sequence[Any]) -> Manifest:
        """Write a batch as tasks, and return its manifest."""
        target, payloads = self.target(), []
        planned = target.plan_batch(SCHEMA, self.changes or "append", batch_id)
        for partition, part in enumerate(parts):
            self._attempts += 1
            writer = planned.writers.open(AttemptId("q", "r", batch_id, partition, self._attempts))
            writer.write(rows_of(*part))
            payloads.append(writer.finish())
        return target.manifest(Batch(STREAM, batch_id, f"d{batch_id}"), planned.content, payloads)

    def commit(self, *manifests: Manifest) -> None:
        """Deliver them together."""
        target = self.target()
        assert target.mergeable(manifests) == list(manifests)
        target.commit(manifests[0] if len(manifests) == 1 else target.merge(manifests, None))

    def run(self, batch_id: int, *parts: Sequence[Any]) -> None:
        self.commit(self.manifest(batch_id, *parts))

    @property
    def texts(self) -> dict[int, str | None]:
        return {row_id: row.get("text") for row_id, row in sorted(self.service.rows.items())}


SCHEMA = pa.schema(
    [("id", pa.int64()), ("n", pa.int64()), ("text", pa.string()), ("more", pa.string()), ("op", pa.string())]
)


def rows_of(*rows: Sequence[Any]) -> pa.RecordBatch:
    """Return rows of (id, n), which delete, (id, n, text), and (id, n, text, more)."""
    whole = [(*(*row, None, None)[:4], "d" if len(row) == 2 else "u") for row in rows]
    columns = zip(*whole, strict=True)
    return pa.record_batch(
        [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)], SCHEMA
    )
