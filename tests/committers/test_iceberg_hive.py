"""Batches with a Hive Metastore: each commit locks the table, and has no other condition.

A lock of a dead holder stays until the metastore times it out. Here the test releases it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import LockState, NoSuchLockException
from tests.support.catalogs import HiveLake, StoredQuery, on_call, request_lost
from tests.support.lakes import ids

from penstock.committers.contract import Committed, ManifestState
from penstock.committers.errors import CommitStateUnknownError, RetryableError

PREPARED, COMMITTED = ManifestState.PREPARED, ManifestState.COMMITTED


@pytest.fixture
def lake(hive_lake: HiveLake) -> HiveLake:
    return hive_lake


def locked(lake: HiveLake) -> int:
    """The table is locked as a commit does it; the lock's id."""
    catalog: Any = lake.catalog
    with lake.client as client:
        lock = client.lock(catalog._create_lock_request(lake.namespace, "ids"))
        assert lock.state == LockState.ACQUIRED
        return int(lock.lockid)


def test_a_new_column_reaches_the_metastore(lake: HiveLake) -> None:
    stream = lake.stream(schemaEvolution="addColumns")
    stream.run(0, ids(1))
    stream.run(1, ids(2).append_column("name", pa.array(["b"])))
    assert lake.rows("id, name") == [(1, None), (2, "b")]
    with lake.client as client:
        columns = client.get_table(lake.namespace, "ids").sd.cols
    assert [(column.name, column.type) for column in columns] == [("id", "bigint"), ("name", "string")]


# Locks -------------------------------------------------------------------------------------------------


def test_a_commit_waits_for_the_lock_of_another(stream: StoredQuery, lake: HiveLake) -> None:
    written = stream.write(1, ids(3))
    held = locked(lake)

    def release_first(_client: Client, forward: Callable[[], Any]) -> Any:
        lake.unlock(held)
        return forward()

    with on_call("check_lock", release_first):
        assert isinstance(stream.commit(written), Committed)
    assert lake.locks() == []
    assert lake.ids() == [1, 2, 3]


def test_a_lock_that_is_kept_is_a_conflict(stream: StoredQuery, lake: HiveLake) -> None:
    written = stream.write(1, ids(3))
    held = locked(lake)
    with pytest.raises(RetryableError, match="3 times"):
        stream.commit(written)
    assert stream.state(1) is PREPARED
    assert lake.locks() == [held]
    assert lake.ids() == [1, 2]
    assert lake.orphan_manifests() == set()
    lake.settle()
    stream.recover()
    assert stream.state(1) is COMMITTED
    assert lake.ids() == [1, 2, 3]


def test_a_lock_that_times_out_leaves_the_state_unknown(stream: StoredQuery, lake: HiveLake) -> None:
    """pyiceberg raises the same error if it has changed the table and cannot release the lock."""
    written = stream.write(1, ids(3))
    locked(lake)

    def forget_all(_client: Client, forward: Callable[[], Any]) -> Any:
        lake.settle()
        return forward()

    with on_call("check_lock", forget_all):
        with pytest.raises(CommitStateUnknownError, match="may or may not"):
            stream.commit(written)
    assert stream.state(1) is PREPARED
    stream.recover()
    assert lake.ids() == [1, 2, 3]


# Responses and requests that are lost ------------------------------------------------------------------


@pytest.mark.parametrize("is_timed_out", [False, True])
def test_a_batch_that_stays_locked_is_committed(
    stream: StoredQuery, lake: HiveLake, is_timed_out: bool
) -> None:
    def no_such_lock(_client: Client, forward: Callable[[], Any]) -> None:
        forward()
        raise NoSuchLockException("No such lock")

    written = stream.write(1, ids(3))
    with on_call("unlock", no_such_lock if is_timed_out else request_lost):
        assert isinstance(stream.commit(written), Committed)
    lake.settle()
    assert lake.ids() == [1, 2, 3]


def test_a_lost_request_for_the_lock_is_committed_by_recovery(stream: StoredQuery, lake: HiveLake) -> None:
    written = stream.write(1, ids(3))
    with on_call("lock", request_lost):
        with pytest.raises(CommitStateUnknownError, match=f"may or may not be .* hive:{lake.name}"):
            stream.commit(written)
    assert stream.state(1) is PREPARED
    assert lake.ids() == [1, 2]
    lake.settle()
    stream.recover()
    assert stream.state(1) is COMMITTED
    assert lake.ids() == [1, 2, 3]
