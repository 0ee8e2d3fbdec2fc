"""A narrow table, a row of it, and wider rows that change its schema (`schemaEvolution=evolve`)."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from tests.support.lakes import LakeTable

from penstock.committers.delta.compaction import DeltaCompactableTable
from penstock.committers.file_tables.compaction import Compaction, CompactionPolicy
from penstock.committers.iceberg.compaction import IcebergCompactableTable
from penstock.delivery.compaction import TableFileRewriter
from penstock.delivery.rewriting import GroupRewriter, InlineExecutor
from penstock.testing.conformance.query import Query
from penstock.writers.delta.partitions import serialize

INNER, WIDER_INNER = pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64()), ("b", pa.string())])
NARROW = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int32(), nullable=False),
        ("f", pa.float32()),
        ("d", pa.decimal128(5, 2)),
        ("s", INNER),
        ("l", pa.list_(INNER)),
    ]
)
WIDE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("n", pa.int64()),
        ("f", pa.float64()),
        ("d", pa.decimal128(9, 2)),
        ("s", WIDER_INNER),
        ("l", pa.list_(WIDER_INNER)),
        ("extra", pa.string()),
    ]
)
OLD: dict[str, Any] = {"id": 1, "n": 1, "f": 0.5, "d": Decimal("1.50"), "s": {"a": 1}, "l": [{"a": 1}]}
NEW: dict[str, Any] = {
    "id": 2,
    "n": 2**40,
    "f": 1e300,
    "d": Decimal("1234567.89"),
    "s": {"a": 2**40, "b": "x"},
    "l": [{"a": 2**40, "b": "y"}],
    "extra": "z",
}
NULLS: dict[str, Any] = {"id": 3}
EVOLVE = {
    "delta": {"schemaEvolution": "evolve", "typeWidening": "true"},
    "iceberg": {"schemaEvolution": "evolve"},
}


def both(old: dict[str, Any]) -> dict[str, Any]:
    """The old row in the wider table."""
    return {**old, "s": {"a": 1, "b": None}, "l": [{"a": 1, "b": None}], "extra": None}


EXPECTED = [both(OLD), NEW, dict.fromkeys(WIDE.names) | NULLS]


def lake_rows(table: LakeTable) -> list[dict[str, Any]]:
    return sorted(
        (dict(zip(WIDE.names, row, strict=True)) for row in table.rows(", ".join(WIDE.names))),
        key=lambda row: row["id"],
    )


def rows(schema: pa.Schema, *values: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(values), schema)


def check(table: LakeTable, expected: Sequence[dict[str, Any]] = EXPECTED) -> None:
    assert lake_rows(table) == list(expected)


def compacted(query: Query) -> tuple[int, int]:
    """Compact the table. Return how many files were rewritten, and into how many."""
    sink: Any = query.sink()
    target: Any = query.target()
    table: Any
    if sink.kind == "delta":
        table = DeltaCompactableTable(sink.table_uri, {}, query.query_id, serialize)
    else:
        table = IcebergCompactableTable(sink.catalog, sink.address, query.query_id)
    rewriter = TableFileRewriter(query.query_id, target.rewrite_config, GroupRewriter(InlineExecutor()))
    policy = CompactionPolicy(128 * 1024**2, 96 * 1024**2, files_min=2)
    done = Compaction(table, rewriter, policy, sleep=lambda _: None).run()
    return done.sources, done.files
