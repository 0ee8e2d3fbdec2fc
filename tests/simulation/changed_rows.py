"""A source whose rows are changes of a few keys, and what a table of the newest rows has to contain."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.committers.contract import Changes

CHANGES = pa.schema([("id", pa.int64()), ("key", pa.int64()), ("place", pa.int64()), ("op", pa.string())])
STORED = pa.schema(
    [
        column.with_metadata({"PARQUET:field_id": str(number)})
        for number, column in enumerate(CHANGES, 1)
        if column.name != "op"
    ]
)
"""Of a data file, with the ids that Iceberg gives to its columns."""
DAY_S = 86400.0

_LAGS = (45, 82, 123)
"""Of late rows. No two end with the same digit, so that no two rows have the same place."""

ROWS_MAX = 60
"""Of a source: more than any history has."""


class Row(NamedTuple):
    """A row of the source or the table."""

    row_id: int
    key: int
    place: int
    """In the order of the source."""
    is_deleted: bool = False


@dataclass(frozen=True)
class SourceOfChanges:
    """What the rows of the source do, by their ids. Those of other writers have negative ids."""

    seed: int
    keys: int
    deletes: float
    late: float
    """How likely a row is older than some before it."""
    changes: Changes

    @staticmethod
    def of(rng: random.Random) -> SourceOfChanges:
        ignores = rng.random() < 0.5
        changes = Changes(
            keys=("key",),
            order_by=("place",),
            delete_when="op = 'd'",
            drop_columns=("op",),
            late_rows="ignore" if ignores else "apply",
            tombstones_s=1000 * DAY_S if ignores else 0.0,
            merge=rng.choice((None, None, None, "on-write")),
        )
        return SourceOfChanges(
            rng.getrandbits(32),
            rng.randint(3, 8),
            rng.choice((0.2, 0.4)),
            rng.choice((0.0, 0.3, 0.3)),
            changes,
        )

    def row(self, row_id: int) -> Row:
        """No two rows of a query have the same place."""
        number = row_id % 1000 if row_id >= 0 else row_id
        rng = random.Random(f"{self.seed} {number}")
        key, is_deleted, is_late = rng.randrange(self.keys), rng.random() < self.deletes, rng.random()
        if row_id < 0:
            return Row(row_id, key, 10 * rng.randrange(12))
        lag = rng.choice(_LAGS) if is_late < self.late else 0
        return Row(row_id, key, 10 * number - lag, is_deleted)


def parquet_of(rows: Iterable[Row]) -> bytes:
    """The content of a data file."""
    columns = list(zip(*[(row.row_id, row.key, row.place) for row in rows], strict=True))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table([pa.array(one, pa.int64()) for one in columns], schema=STORED), sink)
    return sink.getvalue().to_pybytes()


@cache
def _ids_by_digest() -> Mapping[str, range]:
    ranges = (range(start, end) for end in range(ROWS_MAX + 1) for start in range(end + 1))
    return {hashlib.sha256(f"{(one.start, one.stop)}".encode()).hexdigest()[:16]: one for one in ranges}


def ids_of_batch(query_id: str, digest: str) -> range:
    """The rows of a batch, see `batch_of` and `reset_checkpoint`."""
    number, ids = int(query_id.removeprefix("q")), _ids_by_digest()[digest[:16]]
    first = 1000 * number if number > 1 else 0
    return range(first + ids.start, first + ids.stop)


@dataclass
class Expected:
    """The table after one of its commits: a dictionary decides."""

    rows: dict[int, list[Row]] = field(default_factory=dict)
    """By key. Other writers may add several rows of one."""
    deleted: dict[int, int] = field(default_factory=dict)
    """With `lateRows=ignore`: the place of the last deletion of each key."""
    ids: Counter[int] = field(default_factory=Counter)
    """Rows that have come into the table, or would have if no later ones replaced them."""

    def copy(self) -> Expected:
        rows = {key: list(rows) for key, rows in self.rows.items()}
        return Expected(rows, dict(self.deleted), Counter(self.ids))

    def append(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.rows.setdefault(row.key, []).append(row)
            self.ids[row.row_id] += 1

    def commit(
        self,
        batches: Sequence[Sequence[Row]],
        remembered: Mapping[int, Collection[int]],
        there: Collection[Row],
        *,
        ignores_late: bool,
    ) -> None:
        """Apply batches one after the other.

        Args:
            remembered: the places of deletions of each key, also of those whose commit has failed
            there: the rows that the table has now. They tell what such a deletion has kept away
        """
        deleted, last = dict(self.deleted), dict[int, Row]()
        for row in (row for batch in batches for row in sorted(batch, key=lambda row: row.place)):
            self.ids[row.row_id] += 1
            if not ignores_late or row.key not in last or row.place >= last[row.key].place:
                last[row.key] = row
            if ignores_late:
                before = [one.place for one in self.rows.get(row.key, ())]
                is_late = max([*before, deleted.get(row.key, row.place)], default=row.place) > row.place
                if not is_late and any(place > row.place for place in remembered.get(row.key, ())):
                    left = [one for one in there if one.key == row.key]
                    is_late = left != ([] if row.is_deleted else [row])
                if row.is_deleted:
                    deleted[row.key] = max(row.place, deleted.get(row.key, row.place))
                if is_late:
                    continue
            self.rows.pop(row.key, None)
            if not row.is_deleted:
                self.rows[row.key] = [row]
        for key, row in last.items():  # of a key that comes twice, only the last row is looked at
            if row.is_deleted and ignores_late:
                self.deleted[key] = max(row.place, self.deleted.get(key, row.place))

    def all_rows(self) -> Counter[Row]:
        return Counter(row for rows in self.rows.values() for row in rows)
