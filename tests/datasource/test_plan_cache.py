"""Plans of decoupled streams: what was seen of the table is good until somebody has looked again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
import pytest

from penstock.committers.contract import DataFiles, StreamKey, Token
from penstock.committers.errors import RetryableError, TableChangedError
from penstock.committers.file_tables.manifest import LakeManifest
from penstock.datasource.delta.options import DeltaOptions
from penstock.datasource.delta.sink import DeltaSink
from penstock.datasource.plan_cache import PLANS_MAX, REFRESH_S, CachedTable, PlanCache, PlanKey

ROWS = pa.schema([("id", pa.int64())])


class Hands:
    """A clock and a background that a test moves by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.started: list[Callable[[], None]] = []
        self.cache = PlanCache(lambda: self.now, self.started.append)


@pytest.fixture
def hands() -> Hands:
    return Hands()


def key(query_id: str = "q", **options: Any) -> PlanKey[DataFiles, LakeManifest]:
    sink = DeltaSink(DeltaOptions(path="/lake/t", **options))
    return PlanKey(StreamKey(query_id, sink.table_uri), sink, ROWS, overwrite=False)


def seen(batch_id: int) -> CachedTable[DataFiles, LakeManifest]:
    return CachedTable(cast("Any", None), Token(batch_id, ""))


def never() -> CachedTable[DataFiles, LakeManifest]:
    raise AssertionError("nobody asked for a look")


def fails_with(error: BaseException) -> Callable[[], CachedTable[DataFiles, LakeManifest]]:
    def look() -> CachedTable[DataFiles, LakeManifest]:
        raise error

    return look


def test_a_new_process_has_no_plan(hands: Hands) -> None:
    assert hands.cache.get(key()) is None


def test_other_options_or_columns_make_another_plan(hands: Hands) -> None:
    hands.cache.put(key(), seen(0))
    assert hands.cache.get(key()) == seen(0)
    assert hands.cache.get(key(add_columns=True)) is None
    assert hands.cache.get(key("another query")) is None
    known = key()
    assert hands.cache.get(PlanKey(known.stream, known.sink, pa.schema([("x", pa.int8())]), False)) is None


def test_a_young_plan_is_not_looked_at_again(hands: Hands) -> None:
    hands.cache.put(key(), seen(0))
    hands.now = REFRESH_S - 0.1
    hands.cache.refresh(key(), never)
    assert hands.started == []


def test_an_old_plan_is_good_until_the_next_look_has_ended(hands: Hands) -> None:
    """A slow catalog delays no batch, and is asked once at a time."""
    hands.cache.put(key(), seen(0))
    hands.now = REFRESH_S
    hands.cache.refresh(key(), lambda: seen(7))
    hands.cache.refresh(key(), never)
    assert len(hands.started) == 1
    assert hands.cache.get(key()) == seen(0)

    hands.started[0]()
    assert hands.cache.get(key()) == seen(7)
    hands.cache.refresh(key(), never)
    assert len(hands.started) == 1


def test_an_outage_leaves_the_plan_and_is_tried_again(hands: Hands, caplog: pytest.LogCaptureFixture) -> None:
    hands.cache.put(key(), seen(0))
    hands.now = REFRESH_S
    hands.cache.refresh(key(), fails_with(RetryableError("the catalog is down")))
    hands.started.pop()()
    assert hands.cache.get(key()) == seen(0)
    assert "the catalog is down" in caplog.text

    hands.now += REFRESH_S
    hands.cache.refresh(key(), lambda: seen(3))
    hands.started.pop()()
    assert hands.cache.get(key()) == seen(3)


@pytest.mark.parametrize("error", [TableChangedError("dropped"), ZeroDivisionError()])
def test_any_other_error_stops_the_next_batch_and_the_restart_looks_itself(
    hands: Hands, error: Exception
) -> None:
    hands.cache.put(key(), seen(0))
    hands.now = REFRESH_S
    hands.cache.refresh(key(), fails_with(error))
    hands.started[0]()
    with pytest.raises(type(error)):
        hands.cache.get(key())
    assert hands.cache.get(key()) is None


def test_the_plans_of_a_process_are_bounded(hands: Hands) -> None:
    for number in range(PLANS_MAX + 1):
        hands.cache.put(key(f"q{number}"), seen(number))
    assert hands.cache.get(key("q0")) is None
    assert hands.cache.get(key(f"q{PLANS_MAX}")) is not None
