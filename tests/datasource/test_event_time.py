"""The oldest event of a batch, from its rows to its manifest."""

from __future__ import annotations

from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock import ConfigurationError
from penstock.committers.contract import Batch, StreamKey
from penstock.datasource.committing import manifest_of
from penstock.datasource.delta.options import DeltaOptions
from penstock.datasource.delta.sink import DeltaSink
from penstock.datasource.planning.batch_plan import BatchPlan
from penstock.datasource.planning.event_time import OldestEvent, event_time_column
from penstock.datasource.spark.task import TaskAttempt
from penstock.testing.conformance.query import committables

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
LATER = datetime(2026, 1, 2, 3, 4, 6, tzinfo=timezone.utc)


def oldest_of(*columns: pa.Array) -> datetime | None:
    events = OldestEvent("t")
    batches = [pa.record_batch({"id": pa.nulls(len(column)), "t": column}) for column in columns]
    assert list(events.observe(batches)) == batches
    return events.at


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Etc/UTC"])
def test_the_least_value_of_all_batches_is_taken_in_utc(zone: str) -> None:
    kind = pa.timestamp("us", zone)
    assert oldest_of(pa.array([LATER, None], kind), pa.array([LATER, AT], kind), pa.array([], kind)) == AT


@pytest.mark.parametrize(
    ("values", "kind", "is_at"),
    [
        ([AT.replace(tzinfo=None)], pa.timestamp("us"), AT),
        ([date(2026, 1, 3), date(2026, 1, 2)], pa.date32(), datetime(2026, 1, 2, tzinfo=timezone.utc)),
        ([None], pa.timestamp("us", "UTC"), None),
        ([], pa.timestamp("us", "UTC"), None),
        ([-(2**62)], pa.timestamp("us"), datetime.min.replace(tzinfo=timezone.utc)),
        ([2**62], pa.timestamp("us"), datetime.max.replace(tzinfo=timezone.utc)),
    ],
)
def test_what_counts_as_a_moment(values: list[Any], kind: pa.DataType, is_at: datetime | None) -> None:
    assert oldest_of(pa.array(values, kind)) == is_at


def test_the_column_is_found_without_case_and_refused_by_name() -> None:
    rows = pa.schema([("Seen", pa.timestamp("us", "UTC")), ("id", pa.int64())])
    assert event_time_column(rows, "seen") == "Seen"
    assert event_time_column(rows, None) is None
    with pytest.raises(ConfigurationError, match="eventTime='when': the query has no such column"):
        event_time_column(rows, "when")
    with pytest.raises(ConfigurationError, match="eventTime='id': the column is int64"):
        event_time_column(rows, "id")


def test_the_manifest_has_the_oldest_event_of_all_tasks(tmp_path: Path) -> None:
    schema = pa.schema([("t", pa.timestamp("us", "UTC"))])
    sink = DeltaSink(DeltaOptions(path=str(tmp_path / "t"), event_time="t"))
    planned = sink.open_table().plan_batch(schema, "append", 0)
    batch = Batch(StreamKey("q", sink.table_uri), 0, "0" * 64)
    plan = BatchPlan.of_one_target(batch, planned.writers, planned.content, event_time="t")
    parts: tuple[list[datetime | None], ...] = ([LATER], [AT], [None], [])
    messages = [
        plan.write([pa.record_batch([pa.array(part, schema[0].type)], schema=schema)], task(number))
        for number, part in enumerate(parts)
    ]
    assert [message.committable.oldest_event_at for message in messages] == [LATER, AT, None, None]
    manifest = manifest_of(sink.open_table(), planned.content, committables(messages))
    assert manifest.oldest_event_at == AT
    assert DeltaTable(str(tmp_path / "t")).version() == 0


def task(number: int) -> TaskAttempt:
    return TaskAttempt(number, number, "run", "q", 0)
