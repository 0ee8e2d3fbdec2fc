"""Tables in Paimon's REST catalog: the server compares the base of each commit, and answers may be lost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from servers.lossy_proxy import Fault
from tests.support.paimon_catalog import COMMIT, PaimonCatalogHarness
from tests.support.paimon_table import IDS

from penstock.committers.contract import AlreadyCommitted, Committed, Conflict
from penstock.committers.errors import (
    AccessRefusedError,
    CommitStateUnknownError,
    ConfigurationError,
    RetryableError,
    TableChangedError,
    TableNotSupportedError,
)
from penstock.committers.paimon.cleanup import PaimonCleanableTable
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.paimon.options import PaimonOptions
from penstock.datasource.paimon.sink import DESTINATION
from penstock.datasource.stored.table_access import TableAccess
from penstock.testing.conformance import DestinationHarness
from penstock.testing.conformance.changes import ChangeClaims
from penstock.testing.conformance.concurrency import ConcurrencyClaims
from penstock.testing.conformance.query import Query, ids
from penstock.testing.conformance.responses import ResponseClaims
from penstock.testing.conformance.secrecy import SecrecyClaims
from penstock.testing.conformance.upserts import changes, upserts_of
from penstock.testing.faults import at_point


class TestConformance(ResponseClaims, ConcurrencyClaims, ChangeClaims, SecrecyClaims):
    """The claims that depend on the catalog."""

    @pytest.fixture
    def harness(self, in_catalog: PaimonCatalogHarness) -> DestinationHarness:
        return in_catalog


@pytest.fixture
def harness(in_catalog: PaimonCatalogHarness) -> PaimonCatalogHarness:
    return in_catalog


# Changes ----------------------------------------------------------------------------------------------


def test_changes_count_over_those_of_others(store: SqlManifestStore, harness: PaimonCatalogHarness) -> None:
    """The server has the newest snapshot, with the greatest sequence number."""
    upserts = upserts_of(harness, store)
    upserts.run(0, changes((1, 1, "a"), (2, 1, "b"), (3, 1, "c")))
    manifest = upserts.query.build(store, upserts.query.batch(1), changes((1, 2, "A"), (2, 2)))
    harness.write([(1, 1, "other"), (2, 1, "other")], after=time.time_ns())
    assert isinstance(upserts.query.target().commit(manifest), Committed)
    upserts.check((1, 2, "A"), (3, 1, "c"))
    assert not harness.uncommitted()


# Commits ----------------------------------------------------------------------------------------------


def test_a_snapshot_that_took_the_place_of_the_base_is_noticed(
    query: Query, store: SqlManifestStore, harness: PaimonCatalogHarness
) -> None:
    """Another driver commits the batch after a rollback, with the id of the snapshot that was the base."""
    manifest = query.with_options(newTarget="allow").build(store, query.batch(1), ids(1))
    harness.append(100)
    harness.append(101)

    def replace_the_base() -> None:
        harness.roll_back()
        query.target().commit(manifest)

    with at_point("commit.start", replace_the_base):
        outcome = query.target().commit(manifest)
    assert not isinstance(outcome, Conflict)
    assert sorted(harness.ids()) == [1, 100]


def test_a_table_that_is_created_again_in_the_last_moment_is_not_committed_to(
    query: Query, store: SqlManifestStore, harness: PaimonCatalogHarness
) -> None:
    """The request has the id of the table for which the batch was planned."""
    manifest = query.build(store, query.batch(0), ids(0))
    with at_point("commit.start", harness.recreate), pytest.raises(TableChangedError):
        query.target().commit(manifest)
    assert harness.snapshots() == {}


# Lost answers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", ["response lost", "committed, answered 500", "committed, answered 503", "sent twice"]
)
def test_a_committed_batch_is_found(
    query: Query, store: SqlManifestStore, harness: PaimonCatalogHarness, fault: Fault
) -> None:
    """Of a request that came twice, the second is refused: its base is no longer the newest snapshot."""
    manifest = query.build(store, query.batch(0), ids(0))
    harness.proxy.spend(fault, on=COMMIT)
    assert isinstance(query.target().commit(manifest), Committed)
    assert len(harness.proxy.spent()) == 1
    assert harness.ids() == [0]
    assert isinstance(query.target().commit(manifest), AlreadyCommitted)


def test_a_request_that_arrives_after_the_next_commit_adds_nothing(
    query: Query, store: SqlManifestStore, harness: PaimonCatalogHarness
) -> None:
    manifest = query.build(store, query.batch(0), ids(0))
    harness.proxy.spend("request late", on=COMMIT)
    with pytest.raises(CommitStateUnknownError):
        query.target().commit(manifest)
    assert isinstance(query.target().commit(manifest), Committed)
    assert harness.proxy.deliver_late() == [200]

    assert harness.ids() == [0]
    assert harness.problems() == []


def test_a_request_that_arrives_before_the_next_commit_is_found_whole(
    query: Query, store: SqlManifestStore, harness: PaimonCatalogHarness
) -> None:
    """Its manifests are not deleted while it may still be executed."""
    manifest = query.build(store, query.batch(0), ids(0))
    harness.proxy.spend("request late", on=COMMIT)
    with pytest.raises(CommitStateUnknownError):
        query.target().commit(manifest)
    assert harness.proxy.deliver_late() == [200]

    assert isinstance(query.target().commit(manifest), AlreadyCommitted)
    assert harness.ids() == [0]
    assert harness.problems() == []


def test_a_refused_request_leaves_nothing(
    query: Query, store: SqlManifestStore, harness: PaimonCatalogHarness
) -> None:
    manifest = query.build(store, query.batch(0), ids(0))
    harness.proxy.spend("denied", on=COMMIT)
    with pytest.raises(RetryableError):
        query.target().commit(manifest)
    assert harness.orphan_manifests() == []
    assert isinstance(query.target().commit(manifest), Committed)


# The token --------------------------------------------------------------------------------------------


def test_a_snapshot_that_only_the_catalog_has_counts(
    query: Query, store: SqlManifestStore, harness: PaimonCatalogHarness
) -> None:
    """Its file may not be there yet, and the note is lost, too. The clean-up keeps its data files."""
    manifest = query.build(store, query.batch(0), ids(0))
    query.target().commit(manifest)
    for name in ("snapshot/snapshot-1", "penstock/q1.json"):
        (harness.path / name).unlink()

    assert isinstance(query.target().commit(manifest), AlreadyCommitted)
    assert set().union(*PaimonCleanableTable(harness.in_catalog()).names()) == set(harness.data_files())


# Options ----------------------------------------------------------------------------------------------


REST = {"catalog.uri": "http://catalog", "catalog.warehouse": "lake", "catalog.token": "t"}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"table": "a.b", **REST, "path": "/t"}, "path and table are both given"),
        ({"path": "/t", **REST}, r"catalog\.\* is given without table"),
        ({"table": "a", **REST}, "'a' is not database.table"),
        ({"table": "a.b$snapshots", **REST}, "Branches and system tables"),
        ({"table": "a.b", **REST, "catalog.metastore": "jdbc"}, "catalog.metastore must be rest"),
        ({"table": "a.b", **REST, "catalog.warehouse": "/lake"}, "'/lake' is not a name"),
        ({"table": "a.b"}, "catalog.uri is missing"),
        ({"table": "a.b", "catalog.uri": "http://c", "catalog.warehouse": "w"}, "catalog.token is missing"),
    ],
)
def test_options_that_name_no_table_of_a_rest_catalog_are_refused(
    options: dict[str, str], problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        PaimonOptions.parse({"checkpointLocation": "/checkpoint", **options})


def test_a_delivery_process_needs_the_catalog_again(query: Query, harness: PaimonCatalogHarness) -> None:
    sink = query.sink()
    assert "catalog" not in repr(sink.options.given)
    with pytest.raises(ConfigurationError, match="--catalog uri="):
        DESTINATION.sink(query.stream, sink.options.given, TableAccess({}, {}))
    access = TableAccess({}, {key: harness.properties[key] for key in ("uri", "token")})
    delivering = DESTINATION.sink(query.stream, sink.options.given, access)
    assert delivering.table_uri == sink.table_uri == f"penstock:{harness.name}"
    assert delivering.open_table().token("q1") is None


def test_a_wrong_token_is_named_as_such(harness: PaimonCatalogHarness) -> None:
    options = {**harness.options, "catalog.token": "wrong-token-4711"}
    query = Query(harness, destination_options=options)
    with pytest.raises(AccessRefusedError) as failure:
        query.target().token("q1")
    assert "wrong-token-4711" not in str(failure.value)


# Tables -----------------------------------------------------------------------------------------------


def test_a_table_in_an_object_store_is_refused(
    query: Query, store: SqlManifestStore, harness: PaimonCatalogHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pypaimon.catalog.rest.rest_catalog import RESTCatalog

    harness.create(IDS)
    real = RESTCatalog.get_table

    def elsewhere(catalog: RESTCatalog, name: Any) -> Any:
        table = real(catalog, name)
        table.table_path = "s3://bucket/warehouse/rows"
        return table

    monkeypatch.setattr(RESTCatalog, "get_table", elsewhere)
    with pytest.raises(TableNotSupportedError, match="is at s3://bucket"):
        query.plan(store, query.batch(0))


def test_an_external_table_is_refused(
    query: Query, store: SqlManifestStore, harness: PaimonCatalogHarness, tmp_path: Path
) -> None:
    harness.create(IDS, {"path": (tmp_path / "external").as_uri()})
    with pytest.raises(TableNotSupportedError, match="is external: the catalog does not commit to it"):
        query.plan(store, query.batch(0))
