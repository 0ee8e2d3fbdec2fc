"""Changes by key of one query into a database, for tests."""

from __future__ import annotations

from itertools import count
from typing import Any

import pyarrow as pa

from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance import DestinationHarness
from penstock.testing.conformance.query import Query
from penstock.testing.conformance.upserts import COLUMNS, OPTIONS

LATE = {"lateRows": "ignore"}
_RUNS = count()


def query(table: DestinationHarness, **options: str) -> Query:
    return Query(table, "q1", {**OPTIONS, **options})


def run(store: SqlManifestStore, of: Query, rows: pa.Table, batch_id: int = 0) -> Any:
    """Write and commit a batch; return the outcome."""
    return of.target().commit(of.build(store, of.batch(batch_id), rows, run_id=str(next(_RUNS))))


def texts(keys: list[str], text: str, n: int = 1) -> pa.Table:
    """Rows whose key is `name`."""
    size = len(keys)
    given = {"id": [0] * size, "n": [n] * size, "text": [text] * size, "op": ["u"] * size, "name": keys}
    return pa.table(given, pa.schema([*COLUMNS, ("name", pa.string())]))
