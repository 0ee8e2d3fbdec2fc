"""Iceberg's own REST catalog: what the tests over it, and the table committer, build on."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    RESTError,
    ServiceUnavailableError,
)
from pyiceberg.table import Table
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)
from servers.lossy_proxy import Fault, LossyProxy, lossy_proxy
from servers.rest_catalog import RestCatalogServer
from tests.readers import iceberg_rows

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", "b"]})
COMMIT = "POST /v1/namespaces/ /tables/"


@pytest.fixture
def catalog(rest_catalog: RestCatalogServer) -> Catalog:
    return load_catalog("rest", **rest_catalog.properties)


@pytest.fixture
def table(catalog: Catalog) -> Table:
    """An empty table in a namespace of its own."""
    namespace = f"n{uuid.uuid4().hex}"
    catalog.create_namespace(namespace)
    return catalog.create_table(f"{namespace}.events", ROWS.schema)


@pytest.fixture(scope="module")
def proxy(rest_catalog: RestCatalogServer) -> Iterator[LossyProxy]:
    with lossy_proxy(rest_catalog.uri) as proxy:
        yield proxy


@pytest.fixture
def through_proxy(rest_catalog: RestCatalogServer, proxy: LossyProxy) -> Catalog:
    return load_catalog("proxied", **rest_catalog.properties_at(proxy.url))


def set_property(catalog: Catalog, table: Table, name: str) -> None:
    requirements: tuple[TableRequirement, ...] = (AssertTableUUID(uuid=table.metadata.table_uuid),)
    updates: tuple[TableUpdate, ...] = (SetPropertiesUpdate(updates={name: "set"}),)
    catalog.commit_table(table, requirements, updates)


def reload(catalog: Catalog, table: Table) -> Table:
    return catalog.load_table(table.name())


def test_what_pyiceberg_appends_another_reader_reads(catalog: Catalog, table: Table) -> None:
    table.append(ROWS)
    assert iceberg_rows(reload(catalog, table).metadata_location) == [(1, "a"), (2, "b")]


def test_the_slower_of_two_handles_fails(catalog: Catalog, table: Table) -> None:
    behind = reload(catalog, table)
    table.append(ROWS)
    requirement = AssertRefSnapshotId.model_validate(
        {"ref": "main", "snapshot-id": behind.metadata.current_snapshot_id}
    )
    with pytest.raises(CommitFailedException, match="Requirement failed"):
        catalog.commit_table(behind, (requirement,), (SetPropertiesUpdate(updates={"late": "yes"}),))
    assert "late" not in reload(catalog, table).properties


def test_a_sequence_number_of_the_past_is_refused_as_a_conflict(catalog: Catalog, table: Table) -> None:
    """Without any requirement: the server itself looks at the table as it is now."""
    table.append(ROWS)
    head = table.current_snapshot()
    assert head is not None
    stale = head.model_copy(update={"snapshot_id": 1, "parent_snapshot_id": head.snapshot_id})
    with pytest.raises(CommitFailedException, match="older than last sequence number"):
        catalog.commit_table(table, (), (AddSnapshotUpdate(snapshot=stale),))


@pytest.mark.parametrize(
    ("fault", "error", "landed"),
    [
        ("request lost", requests.ConnectionError, False),
        ("response lost", requests.ConnectionError, True),
        ("answered 500", CommitStateUnknownException, False),
        ("answered 502", CommitStateUnknownException, False),
        ("answered 503", ServiceUnavailableError, False),
        ("answered 504", CommitStateUnknownException, False),
        ("landed, answered 500", CommitStateUnknownException, True),
        ("landed, answered 503", ServiceUnavailableError, True),
        ("denied", RESTError, False),
    ],
)
def test_a_commit_is_sent_once_and_its_error_does_not_say_whether_it_landed(
    catalog: Catalog,
    through_proxy: Catalog,
    proxy: LossyProxy,
    table: Table,
    fault: Fault,
    error: type[Exception],
    landed: bool,
) -> None:
    handle = reload(through_proxy, table)
    proxy.spend(fault, fault, on=COMMIT)
    with pytest.raises(error):
        set_property(through_proxy, handle, "mark")
    assert len(proxy.spent()) == 1
    assert ("mark" in reload(catalog, table).properties) is landed


def test_a_commit_can_land_after_its_client_has_given_up(
    catalog: Catalog, through_proxy: Catalog, proxy: LossyProxy, table: Table
) -> None:
    handle = reload(through_proxy, table)
    proxy.spend("request late", on=COMMIT)
    with pytest.raises(requests.ConnectionError):
        set_property(through_proxy, handle, "mark")
    assert "mark" not in reload(catalog, table).properties
    assert proxy.deliver_late() == [200]
    assert "mark" in reload(catalog, table).properties


def test_a_late_commit_is_refused_once_another_moved_the_branch(
    catalog: Catalog, through_proxy: Catalog, proxy: LossyProxy, table: Table
) -> None:
    """A requirement on the branch is what keeps a commit whose client gave up from landing twice."""
    handle = reload(through_proxy, table)
    proxy.spend("request late", on=COMMIT)
    requirement = AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": None})
    with pytest.raises(requests.ConnectionError):
        through_proxy.commit_table(handle, (requirement,), (SetPropertiesUpdate(updates={"mark": "set"}),))
    table.append(ROWS)
    assert proxy.deliver_late() == [409]
    assert "mark" not in reload(catalog, table).properties


def test_a_server_that_is_gone_refuses_the_connection(
    catalog: Catalog, rest_catalog: RestCatalogServer, table: Table
) -> None:
    with lossy_proxy(rest_catalog.uri) as gone:
        elsewhere = load_catalog("gone", **rest_catalog.properties_at(gone.url))
        handle = reload(elsewhere, table)
    with pytest.raises(requests.ConnectionError, match="refused"):
        set_property(elsewhere, handle, "mark")
    assert "mark" not in reload(catalog, table).properties


def test_the_server_deletes_old_metadata_files_by_itself(
    rest_catalog: RestCatalogServer, catalog: Catalog, table: Table
) -> None:
    namespace, name = table.name()
    limits = {
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "2",
    }
    table.transaction().set_properties(limits).commit_transaction()
    for number in range(6):
        set_property(catalog, table, f"p{number}")
    files = list((rest_catalog.warehouse / namespace / name / "metadata").glob("*.metadata.json"))
    assert len(files) == 3
