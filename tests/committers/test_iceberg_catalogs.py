"""Promises of a stream with each kind of Iceberg catalog. `test_iceberg_<kind>.py` test one kind."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.support.catalogs import CatalogLake, StoredQuery
from tests.support.lakes import ids

from penstock.committers.contract import AlreadyCommitted, Committed, ManifestState
from penstock.committers.errors import CommitStateUnknownError, RetryableError, TableChangedError
from penstock.testing.faults import at_point

PREPARED, COMMITTED = ManifestState.PREPARED, ManifestState.COMMITTED

pytestmark = pytest.mark.parametrize("catalog_lake", ["sql", "rest", "glue", "hive"], indirect=True)


@pytest.fixture
def lake(catalog_lake: CatalogLake) -> CatalogLake:
    return catalog_lake


def test_batches_are_committed_once_and_a_replay_is_known(lake: CatalogLake) -> None:
    stream = lake.stream()
    written = [stream.run(batch_id, ids(batch_id)) for batch_id in range(3)]
    assert isinstance(stream.commit(written[2]), AlreadyCommitted)
    assert lake.ids() == [0, 1, 2]
    assert [stream.state(batch_id) for batch_id in range(3)] == [COMMITTED] * 3
    assert stream.query.stream.table_uri == f"{lake.kind}:{lake.name}"


def test_an_overwrite_leaves_the_new_rows_only(stream: StoredQuery, lake: CatalogLake) -> None:
    stream.run(1, ids(2, 3), overwrite=True)
    assert lake.ids() == [2, 3]
    stream.run(2, ids(), overwrite=True)
    assert lake.ids() == []


def test_options_of_a_new_table_and_new_columns_reach_the_server(lake: CatalogLake) -> None:
    stream = lake.stream(
        schemaEvolution="addColumns",
        partitionSpec="bucket(4, id)",
        sortOrder="id DESC",
        tableProperties='{"comment": "mine"}',
    )
    stream.run(0, ids(1, 2, 3))
    stream.run(1, ids(4).append_column("name", pa.array(["new"])))
    table = lake.load()
    assert [str(field.transform) for field in table.spec().fields] == ["bucket[4]"]
    assert str(table.sort_order().fields[0].direction) == "DESC"
    assert table.properties["comment"] == "mine"
    assert lake.rows("id, name") == [(1, None), (2, None), (3, None), (4, "new")]
    assert lake.ids() == [1, 2, 3, 4]


def test_a_branch_is_created_and_written_while_main_stays(stream: StoredQuery, lake: CatalogLake) -> None:
    audit = lake.stream(query_id="audit", branch="audit")
    audit.run(0, ids(3))
    audit.run(1, ids(4))
    assert lake.ids() == [1, 2]
    assert lake.ids("audit") == [1, 2, 3, 4]


def test_expired_snapshots_go_with_their_files(lake: CatalogLake) -> None:
    stream = lake.stream(keepSnapshots="2", snapshotGrace="0s")
    for number, batch_id in enumerate((0, 1, 2, 10, 20, 30)):
        stream.run(batch_id, ids(number))
    assert len(lake.load().metadata.snapshots) <= 3
    assert len([name for name in lake.files() if "/snap-" in name]) <= 4
    assert lake.ids() == [0, 1, 2, 3, 4, 5]


# Others at the same table ------------------------------------------------------------------------------


def test_conflicts_are_tried_again_and_leave_no_file_behind(stream: StoredQuery, lake: CatalogLake) -> None:
    written = stream.write(1, ids(3))
    with at_point("commit.start", lambda: lake.append(100), times=2):
        assert isinstance(stream.commit(written), Committed)
    assert lake.ids() == [1, 2, 3, 100, 100]
    assert lake.orphan_manifests() == set()


def test_more_conflicts_than_attempts_leave_the_batch_pending(stream: StoredQuery, lake: CatalogLake) -> None:
    written = stream.write(1, ids(3))
    with (
        at_point("commit.start", lambda: lake.append(100), times=3),
        pytest.raises(RetryableError, match="3 times"),
    ):
        stream.commit(written)
    assert stream.state(1) is PREPARED
    stream.recover()
    assert stream.state(1) is COMMITTED
    assert lake.ids() == [1, 2, 3, 100, 100, 100]


def test_concurrent_drivers_with_own_connections_commit_once(stream: StoredQuery, lake: CatalogLake) -> None:
    """The other driver commits after our attempt has loaded the table: the catalog refuses ours."""
    other = lake.stream()
    written = stream.write(1, ids(3))
    with at_point("commit.start", other.recover):
        assert isinstance(stream.commit(written), Committed)
    assert stream.state(1) is COMMITTED
    assert lake.ids() == [1, 2, 3]


@pytest.mark.parametrize("is_recreated", [False, True])
def test_a_table_dropped_before_the_commit_stops_the_batch(
    stream: StoredQuery, lake: CatalogLake, is_recreated: bool
) -> None:
    written = stream.write(1, ids(3))

    def drop() -> None:
        lake.catalog.drop_table(lake.name)
        if is_recreated:
            lake.catalog.create_table(lake.name, ids().schema)

    said = "dropped and re-created" if is_recreated else r"Iceberg table .* no longer exists"
    with at_point("commit.start", drop), pytest.raises(TableChangedError, match=said):
        stream.commit(written)
    assert stream.state(1) is PREPARED
    assert not is_recreated or lake.load().current_snapshot() is None


# The network -------------------------------------------------------------------------------------------


def test_a_batch_with_a_lost_response_is_committed(stream: StoredQuery, lake: CatalogLake) -> None:
    written = stream.write(1, ids(3))
    with lake.losing(stream, "response"):
        assert isinstance(stream.commit(written), Committed)
    assert stream.state(1) is COMMITTED
    lake.settle()
    stream.run(2, ids(4))
    assert lake.ids() == [1, 2, 3, 4]


def test_a_lost_request_is_committed_by_recovery(stream: StoredQuery, lake: CatalogLake) -> None:
    written = stream.write(1, ids(3))
    with lake.losing(stream, "request"):
        with pytest.raises(CommitStateUnknownError, match=rf"may or may not be .* {lake.kind}:{lake.name}"):
            stream.commit(written)
    assert stream.state(1) is PREPARED
    assert lake.ids() == [1, 2]
    lake.settle()
    (recovered,) = stream.recover()
    assert (recovered.state, recovered.reason) == (COMMITTED, "Committed")
    assert lake.ids() == [1, 2, 3]


def test_an_unreachable_catalog_leaves_the_batch_prepared(stream: StoredQuery, lake: CatalogLake) -> None:
    written = stream.write(1, ids(3))
    unreachable = lake.stream(lake.unreachable)
    with pytest.raises(RetryableError, match="Nothing was committed"):
        unreachable.commit(written)
    assert stream.state(1) is PREPARED
    stream.recover()
    assert lake.ids() == [1, 2, 3]
