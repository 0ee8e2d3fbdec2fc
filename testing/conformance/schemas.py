"""Claims: tables whose columns are not those of the rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from ...committers.errors import ConfigurationError, PenstockError
from ...committers.store.sql import SqlManifestStore
from ..faults import crash_at
from .claims import Claims, check_nothing_left, check_rows
from .harness import DestinationHarness
from .query import Query

NARROW = pa.schema([("id", pa.int64()), ("number", pa.int32()), ("single", pa.float32())])
WIDE = pa.schema(
    [("id", pa.int64()), ("number", pa.int64()), ("single", pa.float64()), ("more", pa.string())]
)
DOUBLES = pa.schema([("id", pa.int64()), ("single", pa.float64())])


class SchemaClaims(Claims):
    @pytest.mark.parametrize("point", ["commit.start", "commit.landed"])
    def test_columns_are_widened_with_their_batch(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness, point: str
    ) -> None:
        """Also if the driver dies around the commit. Narrower rows still fit."""
        if not harness.promises.evolves:
            _check_refused(harness, store, {"schemaEvolution": "evolve"})
            return
        query.run(store, query.batch(0), _rows(NARROW, (0, 0, 0.5)))
        wider = Query(harness, options={"schemaEvolution": "evolve", **harness.evolving}, store=store)
        rows = _rows(WIDE, (1, 2**40, 1e300, "a"), (2, None, 0.1, None))
        if point in harness.promises.crash_points:
            with crash_at(point):
                wider.run(store, wider.batch(1), rows)
        for run_id in ("r2", "r3"):
            wider.run(store, wider.batch(1), rows, run_id=run_id)
        wider.run(store, wider.batch(2), _rows(NARROW, (3, 3, 0.5)), run_id="r3")

        check_rows(harness, 0, 1, 2, 3)
        check_nothing_left(harness)

    def test_rows_of_another_shape_are_quarantined(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness, tmp_path: Path
    ) -> None:
        """All others are written: with NULL in a new column, or with numbers that the columns can have."""
        refused = tmp_path / "refused"
        letters = {"badRows": "deadLetter", "deadLetter": str(refused)}
        if not harness.promises.quarantines:
            _check_refused(harness, store, {"schemaEvolution": "quarantine", **letters})
            return
        query.run(store, query.batch(0), _rows(NARROW, (0, 0, 0.5)))
        with pytest.raises(ConfigurationError, match="deadLetter"):
            Query(harness, options={"schemaEvolution": "quarantine"}).sink()
        careful = Query(harness, options={"schemaEvolution": "quarantine", **letters}, store=store)
        rows = _rows(
            WIDE,
            (1, 2**31 - 1, 0.5, None),
            (2, 2**31, 0.5, None),
            (3, 3, 0.1, None),
            (4, 4, 1e300, None),
            (5, 5, 0.5, "x"),
            (6, None, None, None),
        )
        careful.run(store, careful.batch(1), rows)
        careful.run(store, careful.batch(2), _rows(WIDE, (7, 7, 7.0, None)))

        check_rows(harness, 0, 1, 6, 7)
        check_nothing_left(harness)
        found = DeltaTable(str(refused)).to_pyarrow_table().to_pylist()
        assert sorted((json.loads(one["row"])["id"], one["code"]) for one in found) == [
            (2, "does_not_fit"),
            (3, "new_shape"),
            (4, "new_shape"),
            (5, "new_shape"),
        ]

    @pytest.mark.parametrize("bad_rows", ["fail", "deadLetter"])
    def test_a_double_never_becomes_infinite_in_a_float_column(
        self,
        query: Query,
        store: SqlManifestStore,
        harness: DestinationHarness,
        tmp_path: Path,
        bad_rows: str,
    ) -> None:
        """The table has FLOAT, and the rows 1e300 as DOUBLE."""
        if not harness.promises.checks_schema:
            return  # it has no columns
        query.run(store, query.batch(0), _rows(DOUBLES, (0, 0.5)).cast(NARROW.remove(1)))
        letters = {"deadLetter": str(tmp_path / "refused")} if bad_rows == "deadLetter" else {}
        lenient = Query(harness, options={"badRows": bad_rows, **letters}, store=store)
        with pytest.raises(PenstockError, match="single"):
            lenient.run(store, lenient.batch(1), _rows(DOUBLES, (1, 1e300)))

        check_rows(harness, 0)
        check_nothing_left(harness)


def _rows(schema: pa.Schema, *rows: tuple[object, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def _check_refused(harness: DestinationHarness, store: SqlManifestStore, options: Mapping[str, str]) -> None:
    value = options["schemaEvolution"]
    with pytest.raises(ConfigurationError, match=f"schemaEvolution={value} is not supported by"):
        Query(harness, options=options, store=store).sink()
    check_rows(harness)
