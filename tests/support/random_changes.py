"""Random changes by key, and what a dict makes of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.testing.conformance.upserts import COLUMNS


@dataclass(frozen=True)
class RandomChanges:
    """Batches with the columns of `upserts.COLUMNS`. A sixth of the rows delete. A tenth are late: older rows
    than others before them. No two rows have the same `n`.
    """

    files: int
    rows_per_file: int
    keys: int
    seed: int = 0

    def batches(self) -> Sequence[pa.Table]:
        rng, count = np.random.default_rng(self.seed), self.files * self.rows_per_file
        place = np.arange(count)
        is_late = rng.random(count) < 1 / 10
        place[is_late] = rng.integers(0, place[is_late] + 1)
        n = place * count + np.arange(count)
        is_deleted = rng.random(count) < 1 / 6
        columns = [
            pa.array(rng.integers(0, self.keys, count)),
            pa.array(n),
            pa.array(n.astype(str), mask=is_deleted),
            pa.array(np.where(is_deleted, "d", "u")),
        ]
        rows = pa.table(columns, schema=COLUMNS)
        return [rows.slice(i * self.rows_per_file, self.rows_per_file) for i in range(self.files)]

    def write(self, folder: Path) -> None:
        """Write the source of a stream, a file for each batch, into a new folder."""
        folder.mkdir()
        for number, rows in enumerate(self.batches()):
            path = folder / f"{number:05}.parquet"
            pq.write_table(rows, path)
            os.utime(path, (1_700_000_000 + number,) * 2)  # Spark reads files in the order of their age

    def expected(self, *, ignores_late: bool) -> Sequence[tuple[int, int, str]]:
        """Return id, n and text of the rows in the end, in their order."""
        rows: dict[int, tuple[int, str]] = {}
        newest: dict[int, int] = {}
        for batch in self.batches():
            last: dict[int, tuple[int, str, str]] = {}
            rows_in_order = sorted(zip(*batch.to_pydict().values(), strict=True), key=lambda row: row[1])
            last.update((key, (n, text, op)) for key, n, text, op in rows_in_order)
            for key, (n, text, op) in last.items():
                if ignores_late and newest.get(key, -1) > n:
                    continue
                newest[key] = n
                rows.pop(key, None)
                if op != "d":
                    rows[key] = n, text
        return sorted((key, *row) for key, row in rows.items())
