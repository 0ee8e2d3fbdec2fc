"""Writes a change feed as Debezium sends it from a Postgres table, and the rows that must come of it.

A file is a batch. In each file the events of a key come in any order, as from several partitions that are
read together; some events come twice; now and then the connector starts again and sends some again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

MESSAGES = pa.schema([("key", pa.string()), ("value", pa.string()), ("offset", pa.int64())])
"""Columns as Spark's Kafka source names them."""
UNAVAILABLE = "__debezium_unavailable_value"
"""In place of a large value that an update has not changed: Postgres does not log it."""
CITIES = ("Bern", "Lagos", "Lima", "Oslo", "Pune", "Quito", "Seoul", "Turin")

Row = dict[str, Any]


@dataclass
class CustomerFeed:
    """The table `customers` of a Postgres database, and its change feed.

    Args:
        keys: number of customers at most
        seed: of the random changes
    """

    keys: int
    seed: int = 1
    rows: dict[int, Row] = field(default_factory=dict)
    """The table as it is after the last event."""
    has_level: bool = False
    """The column `level` was added."""
    _lsn: int = 1_000
    _offset: int = 0
    _last: list[str] = field(default_factory=list)
    """The newest events, which a restarted connector sends again."""

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def write(self, path: Path, changes: int) -> None:
        """Make changes, and write their events into a Parquet file."""
        self._write(path, [self._change() for _ in range(changes)])

    def write_snapshot(self, path: Path) -> None:
        """Write each row as the event of a new snapshot (`op` is `r`)."""
        self._lsn += 8
        self._write(path, [self._event("r", None, row) for row in self.rows.values()])

    def add_level(self, biggest_balance: int) -> None:
        """`ALTER TABLE customers ADD COLUMN level INT`, and balances above the 32 bits of an integer."""
        self.has_level = True
        self._balance_max = biggest_balance

    _balance_max = 1_000_000

    def _write(self, path: Path, events: list[str]) -> None:
        if self._last and self._rng.random() < 0.2:  # the connector starts again, further back
            events = [*self._last, *events]
        self._last = events[-self._rng.randint(1, 200) :]
        events = [*events, *self._rng.choices(events, k=len(events) // 50)]
        self._rng.shuffle(events)
        offsets = range(self._offset, self._offset + len(events))
        self._offset += len(events)
        keys = [json.dumps({"id": _id_of(event)}) for event in events]
        table = pa.table([keys, events, list(offsets)], schema=MESSAGES)
        part = path.with_suffix(".part")
        pq.write_table(table, part)
        part.rename(path)

    def _change(self) -> str:
        """Make a random change; return its event."""
        self._lsn += 8
        key = self._rng.randrange(self.keys)
        before = self.rows.get(key)
        if before is not None and self._rng.random() < 0.15:
            del self.rows[key]
            return self._event("d", before, None)
        after = self._row(key, before)
        self.rows[key] = after
        return self._event("c" if before is None else "u", before, after)

    def _row(self, key: int, before: Row | None) -> Row:
        rng = self._rng
        row = dict(
            before or {"id": key, "name": f"customer {key}", "notes": "\N{SNOWMAN}" * rng.randint(0, 40)}
        )
        row |= {"city": rng.choice(CITIES), "balance": rng.randint(-self._balance_max, self._balance_max)}
        if before is None:
            row["notes"] += str(rng.random())
        if self.has_level:
            row["level"] = rng.randint(1, 5)
        return row

    def _event(self, op: str, before: Row | None, after: Row | None) -> str:
        """Return the event without the schema, as `value.converter.schemas.enable=false` sends it."""
        if op == "u" and after is not None and self._rng.random() < 0.3:
            after = {**after, "notes": UNAVAILABLE}
        source = {
            "version": "3.3.0.Final",
            "connector": "postgresql",
            "name": "shop",
            "db": "shop",
            "schema": "public",
            "table": "customers",
            "ts_ms": 1_790_000_000_000 + self._lsn,
            "snapshot": "true" if op == "r" else "false",
            "txId": self._lsn // 32,
            "lsn": self._lsn,
        }
        keys = {"before": None if before is None else {"id": before["id"]}, "after": after}
        return json.dumps({**keys, "source": source, "op": op, "ts_ms": source["ts_ms"], "transaction": None})


def _id_of(event: str) -> int:
    payload = json.loads(event)
    return int((payload["after"] or payload["before"])["id"])


def messages(folder: Path) -> Iterator[str]:
    """All events in the order of the files."""
    for path in sorted(folder.glob("*.parquet")):
        yield from pq.read_table(path, columns=["value"]).column("value").to_pylist()
