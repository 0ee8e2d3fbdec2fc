"""Cached plans of decoupled streams, and their refresh in the background."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from unittest.mock import Mock

import pyarrow as pa
import pytest

from penstock.committers.contract import DataFiles, StreamKey, Token
from penstock.committers.errors import RetryableError, TableChangedError
from penstock.committers.file_tables.evolution import SchemaEvolution
from penstock.committers.file_tables.manifest import LakeManifest
from penstock.datasource.delta.options import DeltaOptions
from penstock.datasource.delta.sink import DeltaSink
from penstock.datasource.planning.plan_cache import PLANS_MAX, REFRESH_S, CachedTable, PlanCache, PlanKey

ROWS = pa.schema([("id", pa.int64())])


class Process:
    """A plan cache with a clock and background tasks that the test controls."""

    def __init__(self) -> None:
        self.now = 0.0
        self.started: list[Callable[[], None]] = []
        self.cache = PlanCache(lambda: self.now, self.started.append)


@pytest.fixture
def process() -> Process:
    return Process()


def key(query_id: str = "q", **options: Any) -> PlanKey[DataFiles, LakeManifest]:
    sink = DeltaSink(DeltaOptions(path="/lake/t", **options))
    return PlanKey(StreamKey(query_id, sink.table_uri), sink, ROWS, overwrite=False)


def cached(batch_id: int) -> CachedTable[DataFiles, LakeManifest]:
    return CachedTable(cast("Any", None), Token(batch_id, ""))


def test_a_new_process_has_no_plan(process: Process) -> None:
    assert process.cache.get(key()) is None


def test_other_options_or_columns_make_another_plan(process: Process) -> None:
    process.cache.put(key(), cached(0))
    assert process.cache.get(key()) == cached(0)
    assert process.cache.get(key(schema_evolution=SchemaEvolution.ADD_COLUMNS)) is None
    assert process.cache.get(key("another query")) is None
    known = key()
    assert process.cache.get(PlanKey(known.stream, known.sink, pa.schema([("x", pa.int8())]), False)) is None


def test_a_young_plan_is_not_refreshed(process: Process) -> None:
    process.cache.put(key(), cached(0))
    process.now = REFRESH_S - 0.1
    process.cache.refresh(key(), Mock(side_effect=AssertionError))
    assert process.started == []


def test_an_old_plan_is_used_until_the_refresh_has_ended(process: Process) -> None:
    """A slow catalog delays no batch, and is asked once at a time."""
    process.cache.put(key(), cached(0))
    process.now = REFRESH_S
    process.cache.refresh(key(), lambda: cached(7))
    process.cache.refresh(key(), Mock(side_effect=AssertionError))
    assert len(process.started) == 1
    assert process.cache.get(key()) == cached(0)

    process.started[0]()
    assert process.cache.get(key()) == cached(7)
    process.cache.refresh(key(), Mock(side_effect=AssertionError))
    assert len(process.started) == 1


def test_an_outage_leaves_the_plan_and_is_tried_again(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    process.cache.put(key(), cached(0))
    process.now = REFRESH_S
    process.cache.refresh(key(), Mock(side_effect=RetryableError("the catalog is down")))
    process.started.pop()()
    assert process.cache.get(key()) == cached(0)
    assert "the catalog is down" in caplog.text

    process.now += REFRESH_S
    process.cache.refresh(key(), lambda: cached(3))
    process.started.pop()()
    assert process.cache.get(key()) == cached(3)


@pytest.mark.parametrize("error", [TableChangedError("dropped"), ZeroDivisionError()])
def test_any_other_error_stops_the_next_batch(process: Process, error: Exception) -> None:
    process.cache.put(key(), cached(0))
    process.now = REFRESH_S
    process.cache.refresh(key(), Mock(side_effect=error))
    process.started[0]()
    with pytest.raises(type(error)):
        process.cache.get(key())
    assert process.cache.get(key()) is None


def test_the_plans_of_a_process_are_bounded(process: Process) -> None:
    for number in range(PLANS_MAX + 1):
        process.cache.put(key(f"q{number}"), cached(number))
    assert process.cache.get(key("q0")) is None
    assert process.cache.get(key(f"q{PLANS_MAX}")) is not None
