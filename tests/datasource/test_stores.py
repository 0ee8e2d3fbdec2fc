"""Stores that stay open between batches: a cache that notices deleted and restored stores."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from penstock.committers.contract import StreamKey
from penstock.committers.errors import RetryableError, StoreFailedError
from penstock.committers.store.sql import open_store
from penstock.datasource import committing
from penstock.datasource.delta.options import DeltaOptions
from penstock.datasource.delta.sink import DeltaSink
from penstock.datasource.planning import plan
from penstock.datasource.query import Query
from penstock.datasource.stores import OPEN_S_MAX, STORES_MAX, StoreCache

STREAM = StreamKey("q", "/t")


def url(folder: Path, name: str = "store.db") -> str:
    return f"sqlite:///{folder}/{name}"


def test_a_store_is_opened_once(tmp_path: Path) -> None:
    cache = StoreCache()
    with cache.borrow(url(tmp_path)) as first:
        pass
    with cache.borrow(url(tmp_path)) as second:
        assert second is first


def test_concurrent_users_do_not_share_a_store(tmp_path: Path) -> None:
    cache = StoreCache()
    with cache.borrow(url(tmp_path)) as first, cache.borrow(url(tmp_path)) as second:
        assert second is not first


def test_a_deleted_store_is_a_new_one(tmp_path: Path) -> None:
    cache = StoreCache()
    with cache.borrow(url(tmp_path)) as store:
        store.register_stream(STREAM, "delta")
    for path in tmp_path.glob("store.db*"):
        path.unlink()
    with cache.borrow(url(tmp_path)) as store:
        assert store.streams() == []
        store.register_stream(STREAM, "delta")
        assert len(store.streams()) == 1


def test_a_store_that_was_restored_from_a_copy_is_read_again(tmp_path: Path) -> None:
    cache = StoreCache()
    open_store(url(tmp_path, "copy.db")).close()
    with cache.borrow(url(tmp_path)) as store:
        store.register_stream(STREAM, "delta")
    for path in tmp_path.glob("store.db-*"):
        path.unlink()
    (tmp_path / "copy.db").replace(tmp_path / "store.db")
    with cache.borrow(url(tmp_path)) as store:
        assert store.streams() == []


def test_a_store_that_failed_is_opened_again(tmp_path: Path) -> None:
    cache = StoreCache()
    with pytest.raises(RetryableError), cache.borrow(url(tmp_path)) as first:
        raise RetryableError("it does not answer")
    with cache.borrow(url(tmp_path)) as second:
        assert second is not first


def test_a_forked_process_opens_its_own(tmp_path: Path) -> None:
    cache = StoreCache()
    with cache.borrow(url(tmp_path)) as first:
        pass
    child = os.fork()
    if child == 0:
        with cache.borrow(url(tmp_path)) as second:
            os._exit(0 if second is not first else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with cache.borrow(url(tmp_path)) as again:
        assert again is first
        again.register_stream(STREAM, "delta")


def test_a_store_is_opened_again_after_some_time(tmp_path: Path) -> None:
    """A newer version may have upgraded its tables."""
    clock = Mock(return_value=0.0)
    cache = StoreCache(clock)
    with cache.borrow(url(tmp_path)) as first:
        pass
    clock.return_value = OPEN_S_MAX
    with cache.borrow(url(tmp_path)) as second:
        assert second is not first


def test_open_stores_are_bounded(tmp_path: Path) -> None:
    cache = StoreCache()
    with cache.borrow(url(tmp_path, "first.db")) as first:
        pass
    for number in range(STORES_MAX):
        with cache.borrow(url(tmp_path, f"{number}.db")):
            pass
    with cache.borrow(url(tmp_path, "first.db")) as again:
        assert again is not first


COLUMNS = StructType([StructField("id", LongType())])


@pytest.mark.parametrize(
    ("module", "call"),
    [
        (plan, lambda query: plan.plan_stream_batch(query, COLUMNS, False)),
        (committing, lambda query: committing.commit_stream_batch(query, [])),
    ],
    ids=["planner", "commit"],
)
def test_planner_and_commit_wait_for_the_store_as_long_as_the_query_says(
    module: ModuleType, call: Callable[[Query], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query.of(DeltaSink(DeltaOptions(path=f"{tmp_path}/t", store=url(tmp_path), store_wait_s=7)))
    borrow = Mock(side_effect=StoreFailedError("down"))
    monkeypatch.setattr(module, "borrow_store", borrow)
    monkeypatch.setattr(plan, "open_checkpoint", Mock())
    monkeypatch.setattr(plan, "check_apart_from_source", Mock())
    with pytest.raises(StoreFailedError):
        call(query)
    borrow.assert_called_once_with(url(tmp_path), 7)


def test_a_store_that_was_borrowed_waits(tmp_path: Path) -> None:
    with StoreCache().borrow(url(tmp_path), 7) as store:
        assert store._database.patience.wait_s == 7
