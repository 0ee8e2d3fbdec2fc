"""Claims: values that are hard to write, also where they decide the place of a row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from ...committers.errors import ConfigurationError, SchemaMismatchError
from ...committers.store.sql import SqlManifestStore
from .claims import Claims, check_nothing_left, check_rows
from .harness import DestinationHarness
from .query import Plan, Query, attempt

_MICROSECONDS = pa.timestamp("us", "UTC")
_ENDS_OF_DUCKDB = (-9223372022400000001, -9223372022400000000)
_ENDS_OF_PYTHON = (-62135596800000001, -62135596800000000, 253402300799999999, 253402300800000000)

HARD: Mapping[str, pa.Array] = {
    "text": pa.array(
        [
            *(
                "",
                " ",
                " x ",
                ".",
                "..",
                "../x",
                "%2e%2e",
                "%252e%252E/..",
                "%",
                "%00",
                "\0",
                "a\0b",
                "/",
                "a/b",
            ),
            *(
                "NULL",
                "null",
                "None",
                "__HIVE_DEFAULT_PARTITION__",
                "=",
                "a=b",
                ".x",
                "_x",
                "file:x",
                "s3://x",
            ),
            *(
                "\\",
                "'",
                '"',
                "\n",
                "\t",
                "\x7f",
                "\u0085",
                "\u2028",
                "\ufeff",
                "\U0001f600",
                "*",
                "{}",
                "$x",
            ),
            *("e\u0301", "x" * 300, "\u00e9" * 200),
        ],
        pa.string(),
    ),
    "day": pa.array([-(2**31), -719163, -719162, 2932896, 2932897, 2**31 - 1], pa.int32()).cast(pa.date32()),
    "instant": pa.array(
        [-(2**63), *_ENDS_OF_DUCKDB, *_ENDS_OF_PYTHON, 2**63 - 1],
        pa.int64(),
    ).cast(_MICROSECONDS),
}
"""By the name of the column."""
GOOD: Mapping[str, pa.Array] = {
    "text": pa.array(["plain"], pa.string()),
    "day": pa.array([0], pa.int32()).cast(pa.date32()),
    "instant": pa.array([0], pa.int64()).cast(_MICROSECONDS),
}
PLACES = ("text", "day")
"""Columns that decide the place of a row, where one can."""


class ValueClaims(Claims):
    @pytest.mark.parametrize("column", list(HARD))
    def test_a_value_that_the_tasks_let_pass_is_committed(
        self,
        query: Query,
        store: SqlManifestStore,
        harness: DestinationHarness,
        tmp_path: Path,
        column: str,
    ) -> None:
        """The others are bad rows. The next batch follows."""
        refused = tmp_path / "refused"
        query = query.with_options(**(harness.options_by(column) if column in PLACES else {}))
        rows = pa.table({"id": pa.array(range(len(HARD[column])), pa.int64()), column: HARD[column]})
        try:
            plan = query.plan(store, query.batch(0), rows.schema)
        except SchemaMismatchError:  # the destination has no such columns
            check_rows(harness)
            return
        try:
            with_letters = query.with_options(badRows="deadLetter", deadLetter=str(refused))
            with_letters.run(store, query.batch(0), rows)
            letters = DeltaTable(str(refused)).to_pyarrow_table().to_pylist() if refused.exists() else []
            bad = {int(json.loads(letter["row"])["id"]) for letter in letters}
        except ConfigurationError as error:
            if "badRows" not in str(error):
                raise
            bad = _refused_one_by_one(plan, rows)
            good = [number not in bad for number in range(rows.num_rows)]
            query.run(store, query.batch(0), rows.filter(good))
        good = pa.table([pa.array([100], pa.int64()), GOOD[column]], schema=rows.schema)
        query.run(store, query.batch(1), good)

        check_rows(harness, *sorted({*range(rows.num_rows), 100} - bad))
        check_nothing_left(harness)


def _refused_one_by_one(plan: Plan, rows: pa.Table) -> set[int]:
    """The destination has no dead letters: return the numbers of the rows that fail a task."""
    refused = set()
    assert plan.writers is not None
    for number in range(rows.num_rows):
        writer = plan.writers.open(attempt(plan.batch, number, "r1"))
        try:
            for batch in rows.slice(number, 1).to_batches():
                writer.write(batch)
        except SchemaMismatchError:
            refused.add(number)
        finally:
            writer.abort()
    return refused
