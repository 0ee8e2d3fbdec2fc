"""Batches over a Hive Metastore: each commit takes a lock on the table, and has no other condition.

A lock whose holder is gone stays until the metastore times it out; here the test takes it away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import LockState, NoSuchLockException, ShowLocksRequest, UnlockRequest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.hive import HiveCatalog
from servers.hive_metastore import HiveMetastore
from tests.committers.catalog_lake import CatalogLake, ids, local
from tests.committers.iceberg_query import IcebergQuery
from tests.committers.lakes import named_files
from tests.readers import iceberg_rows
from thrift.transport.TTransport import TTransportException

from penstock.committers.contract import AlreadyCommitted, Committed, ManifestState
from penstock.committers.errors import CommitStateUnknownError, RetryableError
from penstock.datasource.iceberg.options import IcebergOptions
from penstock.testing.faults import at_point

PREPARED, COMMITTED = ManifestState.PREPARED, ManifestState.COMMITTED
IMPATIENT = {
    "lock-check-min-wait-time": "0.01",
    "lock-check-max-wait-time": "0.02",
    "lock-check-retries": "3",
}


class Lake(CatalogLake):
    """One table in a namespace of its own, as the test sees it: straight from the metastore."""

    def __init__(self, metastore: HiveMetastore, folder: Path) -> None:
        self._metastore = metastore
        super().__init__(folder)

    @cached_property
    def catalog(self) -> HiveCatalog:
        catalog = load_catalog("hive", **self._metastore.properties)
        assert isinstance(catalog, HiveCatalog)
        return catalog

    def stream(self, uri: str | None = None, **options: Any) -> IcebergQuery:
        properties = {**self._metastore.properties, **IMPATIENT, "uri": uri or self._metastore.uri}
        made = IcebergOptions(catalog="hive", catalog_properties=properties, table=self.name, **options)
        return IcebergQuery(made, self._store_url)

    def orphans(self) -> set[str]:
        """Manifests and lists of manifests that no snapshot names."""
        return self.metadata_files() - {Path(name).name for name in named_files(self.load())}

    def lock(self) -> int:
        """Lock the table as a commit does; the lock's id."""
        with self.catalog._client as client:
            request = self.catalog._create_lock_request(self.namespace, "ids")
            lock = client.lock(request)
            assert lock.state == LockState.ACQUIRED
            return int(lock.lockid)

    def locks(self) -> list[int]:
        """Of the table, held and waited for."""
        with self.catalog._client as client:
            found = client.show_locks(ShowLocksRequest(dbname=self.namespace, tablename="ids")).locks
            return [lock.lockid for lock in found]

    def unlock(self, *locks: int) -> None:
        """These or all: as the metastore does when a lock's holder has not been heard of for long."""
        for lock in locks or self.locks():
            with self.catalog._client as client:
                client.unlock(UnlockRequest(lockid=lock))


@pytest.fixture
def lake(hive: HiveMetastore, tmp_path: Path) -> Lake:
    return Lake(hive, tmp_path)


@pytest.fixture
def stream(lake: Lake) -> IcebergQuery:
    """Its first batch has landed."""
    stream = lake.stream(commit_attempts_max=3)
    stream.run(0, ids(1, 2))
    return stream


@contextmanager
def on_call(name: str, action: Callable[[Client, Callable[[], Any]], Any]) -> Iterator[None]:
    """Do this instead, once, when the metastore's client calls the method; it gets what calls it."""
    send, left = getattr(Client, name), [action]

    def call(client: Client, *args: Any, **options: Any) -> Any:
        def forward() -> Any:
            return send(client, *args, **options)

        return left.pop()(client, forward) if left else forward()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, name, call)
        yield
        assert not left


def hang_up(client: Client) -> None:
    """As from the client's side: the connection is gone for the calls after, too."""
    client._iprot.trans.close()
    raise TTransportException(TTransportException.END_OF_FILE, "TSocket read 0 bytes")


def response_lost(client: Client, forward: Callable[[], Any]) -> None:
    forward()
    hang_up(client)


def request_lost(client: Client, _forward: Callable[[], Any]) -> None:
    hang_up(client)


# Without faults ------------------------------------------------------------------------------------------


def test_batches_land_once_and_a_replay_is_known(lake: Lake) -> None:
    stream = lake.stream()
    written = [stream.run(batch_id, ids(batch_id)) for batch_id in range(5)]
    assert isinstance(stream.commit(written[4]), AlreadyCommitted)
    assert lake.ids() == [0, 1, 2, 3, 4]
    assert [stream.state(batch_id) for batch_id in range(5)] == [COMMITTED] * 5
    assert stream.sink.table_uri == f"hive:{lake.name}"
    assert lake.locks() == []


def test_a_new_column_reaches_the_metastore(lake: Lake) -> None:
    stream = lake.stream(add_columns=True)
    stream.run(0, ids(1))
    stream.run(1, ids(2).append_column("name", pa.array(["b"])))
    assert iceberg_rows(lake.load().metadata_location, "id, name") == [(1, None), (2, "b")]
    with lake.catalog._client as client:
        columns = client.get_table(lake.namespace, "ids").sd.cols
    assert [(column.name, column.type) for column in columns] == [("id", "bigint"), ("name", "string")]


def test_expired_snapshots_go_with_their_files(lake: Lake) -> None:
    stream = lake.stream(snapshots_max=2, snapshot_grace_s=0.0)
    for number, batch_id in enumerate((1, 2, 3, 10, 20, 30)):
        stream.run(batch_id, ids(number))
    table = lake.load()
    assert len(table.metadata.snapshots) <= 3
    assert len(list(local(table.location()).rglob("snap-*"))) <= 4
    assert lake.ids() == [0, 1, 2, 3, 4, 5]


# Others at the same table ---------------------------------------------------------------------------------


def test_conflicts_are_tried_again_and_leave_no_file_behind(stream: IcebergQuery, lake: Lake) -> None:
    written = stream.write(1, ids(3))
    with at_point("commit.start", lambda: lake.append(100), times=2):
        assert isinstance(stream.commit(written), Committed)
    assert lake.ids() == [1, 2, 3, 100, 100]
    assert lake.orphans() == set()


def test_a_twin_with_another_connection_and_we_commit_once(stream: IcebergQuery, lake: Lake) -> None:
    twin = lake.stream()
    written = stream.write(1, ids(3))
    with at_point("commit.start", twin.recover):
        assert isinstance(stream.commit(written), Committed)
    assert stream.state(1) is COMMITTED
    assert lake.ids() == [1, 2, 3]


# Locks ----------------------------------------------------------------------------------------------------


def test_a_commit_waits_for_the_lock_of_another(stream: IcebergQuery, lake: Lake) -> None:
    written = stream.write(1, ids(3))
    held = lake.lock()

    def release_first(_client: Client, forward: Callable[[], Any]) -> Any:
        lake.unlock(held)
        return forward()

    with on_call("check_lock", release_first):
        assert isinstance(stream.commit(written), Committed)
    assert lake.locks() == []
    assert lake.ids() == [1, 2, 3]


def test_a_lock_that_stays_is_a_conflict_and_the_batch_waits_for_the_next_start(
    stream: IcebergQuery, lake: Lake
) -> None:
    written = stream.write(1, ids(3))
    held = lake.lock()
    with pytest.raises(RetryableError, match="3 times"):
        stream.commit(written)
    assert stream.state(1) is PREPARED
    assert lake.locks() == [held]
    assert lake.ids() == [1, 2]
    assert lake.orphans() == set()
    lake.unlock()
    stream.recover()
    assert stream.state(1) is COMMITTED
    assert lake.ids() == [1, 2, 3]


def test_a_lock_that_the_metastore_forgets_meanwhile_leaves_the_state_unknown(
    stream: IcebergQuery, lake: Lake
) -> None:
    """pyiceberg raises the same if it has changed the table and cannot give the lock back."""
    written = stream.write(1, ids(3))
    lake.lock()

    def forget_all(_client: Client, forward: Callable[[], Any]) -> Any:
        lake.unlock()
        return forward()

    with on_call("check_lock", forget_all):
        with pytest.raises(CommitStateUnknownError, match="may or may not"):
            stream.commit(written)
    assert stream.state(1) is PREPARED
    stream.recover()
    assert lake.ids() == [1, 2, 3]


# Responses and requests that are lost ---------------------------------------------------------------------

CHANGE = "alter_table_with_environment_context"


def test_a_batch_that_landed_with_its_response_lost_is_committed(stream: IcebergQuery, lake: Lake) -> None:
    written = stream.write(1, ids(3))
    with on_call(CHANGE, response_lost):
        assert isinstance(stream.commit(written), Committed)
    assert stream.state(1) is COMMITTED
    assert lake.ids() == [1, 2, 3]
    assert len(lake.locks()) == 1
    lake.unlock()
    stream.run(2, ids(4))
    assert lake.ids() == [1, 2, 3, 4]


@pytest.mark.parametrize("is_timed_out", [False, True])
def test_a_batch_that_landed_and_whose_lock_is_not_given_back_is_committed(
    stream: IcebergQuery, lake: Lake, is_timed_out: bool
) -> None:
    def no_such_lock(_client: Client, forward: Callable[[], Any]) -> None:
        forward()
        raise NoSuchLockException("No such lock")

    written = stream.write(1, ids(3))
    with on_call("unlock", no_such_lock if is_timed_out else request_lost):
        assert isinstance(stream.commit(written), Committed)
    lake.unlock()
    assert lake.ids() == [1, 2, 3]


@pytest.mark.parametrize("lost", ["lock", CHANGE])
def test_a_lost_request_leaves_the_state_unknown_and_recovery_commits(
    stream: IcebergQuery, lake: Lake, lost: str
) -> None:
    written = stream.write(1, ids(3))
    with on_call(lost, request_lost):
        with pytest.raises(CommitStateUnknownError, match=f"may or may not be .* hive:{lake.name}"):
            stream.commit(written)
    assert stream.state(1) is PREPARED
    assert lake.ids() == [1, 2]
    lake.unlock()
    stream.recover()
    assert stream.state(1) is COMMITTED
    assert lake.ids() == [1, 2, 3]


def test_a_metastore_that_is_gone_leaves_the_batch_prepared(lake: Lake) -> None:
    written = lake.stream().write(0, ids(1))
    gone = lake.stream("thrift://127.0.0.1:1")
    with pytest.raises(RetryableError, match=r"Could not connect.*Nothing was committed"):
        gone.commit(written)
    assert gone.state(0) is PREPARED
    lake.stream().recover()
    assert lake.ids() == [1]
