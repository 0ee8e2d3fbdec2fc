"""The request-based plug-in writes points to a real InfluxDB, and passes the conformance suite."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from servers.influxdb import InfluxServer

from penstock import SchemaMismatchError
from penstock.committers.store.sql import open_store
from penstock.testing.conformance import DestinationConformance, Query

if TYPE_CHECKING:
    from tests.request_plug_in.harness import InfluxHarness


@pytest.fixture
def influx(plug_in: Path, tmp_path: Path, influxdb: InfluxServer) -> InfluxHarness:
    from tests.request_plug_in.harness import InfluxHarness

    harness = InfluxHarness(tmp_path, influxdb)
    harness.create()
    return harness


class TestInfluxDb(DestinationConformance):
    """A point that is sent again replaces itself."""

    @pytest.fixture
    def harness(self, influx: InfluxHarness) -> InfluxHarness:
        return influx


def write(influx: InfluxHarness, tmp_path: Path, rows: pa.Table, bad_rows: str = "fail") -> None:
    query = Query(influx, options={"time": "at", "tags": "town, kind", "badRows": bad_rows})
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        query.run(store, query.batch(0), rows)


AT = datetime(2026, 11, 20, 12, 0, 0, 5, timezone.utc)


def test_values_of_all_types_arrive(influx: InfluxHarness, tmp_path: Path) -> None:
    texts = ['a "quoted" \\ text,\nof two lines', None]
    columns = {
        "at": pa.array([AT, AT], pa.timestamp("us", "UTC")),
        "town": ["New York, NY=1", "Köln"],
        "kind": [7, None],
        "text": texts,
        "a name": [1, -(2**63)],
        "x": [1e300, None],
        "is_it": [True, False],
    }
    write(influx, tmp_path, pa.table(columns))

    points = sorted(influx.points(), key=lambda point: str(point["kind"]))
    assert [point.pop("time") for point in points] == [int(AT.timestamp()) * 10**6 + 5] * 2
    assert points == [
        {"town": "New York, NY=1", "kind": "7", "text": texts[0], "a name": 1, "x": 1e300, "is_it": True},
        {"town": "Köln", "kind": None, "text": None, "a name": -(2**63), "x": None, "is_it": False},
    ]


def test_a_point_of_another_type_is_refused_and_the_others_of_its_request_arrive(
    influx: InfluxHarness, tmp_path: Path
) -> None:
    influx.append(1)
    columns = {
        "at": [2, 3, 4],
        "town": ["a", "b", "c"],
        "kind": ["k", "k", "k"],
        "count": ["no", None, None],
        "n": [1, 2, 3],
    }
    write(influx, tmp_path, pa.table(columns), "drop")

    assert sorted(influx.ids()) == [1, 3, 4]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([None], pa.int64()), "NULL in the column at"),
        (pa.array(["monday"]), "Cast the column at"),
    ],
)
def test_rows_without_a_time_are_refused(
    influx: InfluxHarness, tmp_path: Path, column: pa.Array, message: str
) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        write(influx, tmp_path, pa.table({"at": column, "town": ["a"], "kind": ["k"]}))
