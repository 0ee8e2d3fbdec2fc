"""A destination in memory: how rows become requests, and what it has received."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa

from penstock.committers.errors import PenstockError, SchemaMismatchError
from penstock.committers.requests.contract import Counters, RefusedEntry, RowPlace

REFUSED_AT = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class FakeEntry:
    id: str
    position: int
    row_id: int
    size_bytes: int = 8


@dataclass
class FakeDestination:
    """Sends `batch` entries at a time, and acknowledges them at once, except for those behind `held`."""

    received: list[FakeEntry] = field(default_factory=list)
    batch: int = 2
    fails_after: int | None = None
    """Number of entries after which it does not answer."""
    error: PenstockError | None = None
    refused: frozenset[int] = frozenset()
    """Row ids that are dropped as bad rows."""
    keeps_refused: bool = False
    """They become dead letters instead."""
    inconvertible: frozenset[int] = frozenset()
    """Row ids that cannot be converted."""
    columns: tuple[str, ...] = ("id",)
    """Those that the rows must have."""

    def check_schema(self, rows: pa.Schema) -> None:
        if not set(self.columns) <= set(rows.names):
            raise SchemaMismatchError("columns are missing")

    def checker(self) -> Callable[[pa.RecordBatch], None]:
        return lambda rows: None

    def entries(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[FakeEntry]:
        prefix = f"{place.query_id}-{place.batch_id}-{place.partition}"
        ids = rows.column("id").to_pylist()
        if self.inconvertible.intersection(ids):
            raise SchemaMismatchError("a row cannot be converted")
        return [
            FakeEntry(f"{prefix}-{place.row + number}", place.position + number, row_id)
            for number, row_id in enumerate(ids)
        ]

    def open_writer(self, on_acknowledged: Callable[[], None] = lambda: None) -> FakeWriter:
        return FakeWriter(self, on_acknowledged)

    @property
    def ids(self) -> list[str]:
        return [entry.id for entry in self.received]


class FakeWriter:
    """See `EntryWriter`."""

    def __init__(self, destination: FakeDestination, on_acknowledged: Callable[[], None]) -> None:
        self._destination = destination
        self._on_acknowledged = on_acknowledged
        self._buffered: list[FakeEntry] = []
        self.acknowledged_up_to: int | None = None
        self.counters = Counters()
        self.is_ended = False
        self._check: Callable[[], None] = lambda: None
        self._refused: list[RefusedEntry] = []

    def check_with(self, check: Callable[[], None]) -> None:
        self._check = check

    def write(self, entries: Sequence[Any]) -> None:
        self._check()
        for entry in entries:
            self._buffered.append(entry)
            if len(self._buffered) == self._destination.batch:
                self.flush()

    def flush(self) -> None:
        destination, sent = self._destination, self._buffered
        self._buffered = []
        for entry in sent:
            if destination.fails_after is not None and len(destination.received) >= destination.fails_after:
                assert destination.error is not None
                raise destination.error
            destination.received.append(entry)
            if entry.row_id in destination.refused:
                self.counters.dead_letters += 1
                self._refused.append(
                    RefusedEntry(entry.position, entry.id, "400", "not accepted", REFUSED_AT)
                )
        if sent:
            self._on_acknowledged()
            self.acknowledged_up_to = sent[-1].position

    def take_refused(self) -> list[RefusedEntry]:
        taken, self._refused = self._refused, []
        return taken if self._destination.keeps_refused else []

    def stop(self) -> None:
        pass

    def abort(self) -> None:
        assert not self.is_ended
        self.is_ended = True
