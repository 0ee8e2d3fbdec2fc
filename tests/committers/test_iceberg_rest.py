"""Batches over a REST catalog, while the network loses, delays and repeats what it carries.

After each: every row once, for two readers; every file that a snapshot names is there; the store says what
the protocol says.
"""

from __future__ import annotations

import socket
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from servers.lossy_proxy import Fault, LossyProxy, lossy_proxy
from servers.rest_catalog import RestCatalogServer, rest_catalog_server
from tests.committers.catalog_lake import CatalogLake, ids
from tests.committers.iceberg_query import IcebergQuery
from tests.committers.lakes import named_files
from tests.readers import iceberg_rows

from penstock.committers.contract import AlreadyCommitted, Committed, ManifestState
from penstock.committers.errors import (
    CommitStateUnknownError,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
    TableChangedError,
)
from penstock.committers.iceberg.catalog import CatalogConfig, open_catalog
from penstock.committers.iceberg.library import catalogs
from penstock.committers.iceberg.library.rest import RestCatalogWithTimeouts
from penstock.committers.store.sql import open_store
from penstock.datasource.iceberg.options import IcebergOptions
from penstock.testing.faults import at_point

COMMIT = "POST /v1/namespaces/ /tables/"
PREPARED, COMMITTED = ManifestState.PREPARED, ManifestState.COMMITTED


class Lake(CatalogLake):
    """One table in a namespace of its own, as the test sees it: straight from the server."""

    def __init__(self, server: RestCatalogServer, folder: Path) -> None:
        self.server = server
        super().__init__(folder)

    @property
    def catalog(self) -> Catalog:
        return load_catalog("rest", **self.server.properties)

    def stream(self, uri: str | None = None, query_id: str = "q", **options: Any) -> IcebergQuery:
        """The query, with its connection to the server or to a proxy at `uri`."""
        properties = {**self.server.properties_at(uri or self.server.uri), **options.pop("properties", {})}
        made = IcebergOptions(catalog="rest", catalog_properties=properties, table=self.name, **options)
        return IcebergQuery(made, self._store_url, query_id)


@pytest.fixture(scope="module")
def proxy(rest_catalog: RestCatalogServer) -> Iterator[LossyProxy]:
    with lossy_proxy(rest_catalog.uri) as proxy:
        yield proxy


@pytest.fixture
def lake(rest_catalog: RestCatalogServer, tmp_path: Path) -> Lake:
    return Lake(rest_catalog, tmp_path)


@pytest.fixture
def stream(lake: Lake, network: LossyProxy) -> IcebergQuery:
    """Through the proxy; its first batch has landed."""
    stream = lake.stream(network.url)
    stream.run(0, ids(1, 2))
    return stream


# Without faults ------------------------------------------------------------------------------------------


def test_batches_land_once_and_a_replay_is_known(lake: Lake) -> None:
    stream = lake.stream()
    written = [stream.run(batch_id, ids(batch_id)) for batch_id in range(3)]
    assert isinstance(stream.commit(written[2]), AlreadyCommitted)
    assert lake.ids() == [0, 1, 2]
    assert [stream.state(batch_id) for batch_id in range(3)] == [COMMITTED] * 3
    assert stream.sink.table_uri == f"rest:{lake.name}"


def test_partitions_columns_and_properties_of_a_new_table_reach_the_server(lake: Lake) -> None:
    from penstock.committers.iceberg.terms import parse_partition_spec, parse_sort_order

    options = lake.stream().options
    made = replace(
        options,
        partition_spec=parse_partition_spec("bucket(4, id)"),
        sort_order=parse_sort_order("id DESC"),
        table_properties={"comment": "mine"},
        add_columns=True,
    )
    stream = IcebergQuery(made, lake.stream().store_url)
    stream.run(0, ids(1, 2, 3))
    stream.run(1, ids(4).append_column("name", pa.array(["new"])))
    table = lake.load()
    assert [str(field.transform) for field in table.spec().fields] == ["bucket[4]"]
    assert str(table.sort_order().fields[0].direction) == "DESC"
    assert table.properties["comment"] == "mine"
    rows = iceberg_rows(table.metadata_location, "id, name")
    assert rows == [(1, None), (2, None), (3, None), (4, "new")]
    assert lake.ids() == [1, 2, 3, 4]


def test_a_branch_is_created_and_written_while_main_stays(lake: Lake) -> None:
    lake.stream().run(0, ids(1))
    audit = lake.stream(query_id="audit", branch="audit")
    audit.run(0, ids(2))
    audit.run(1, ids(3))
    assert lake.ids() == [1]
    assert lake.ids("audit") == [1, 2, 3]


def test_an_overwrite_leaves_the_new_rows_only(lake: Lake) -> None:
    stream = lake.stream()
    stream.run(0, ids(1, 2))
    stream.run(1, ids(2, 3), overwrite=True)
    assert lake.ids() == [2, 3]
    stream.run(2, ids(), overwrite=True)
    assert lake.ids() == []


def test_expired_snapshots_go_with_their_files(lake: Lake) -> None:
    stream = lake.stream(snapshots_max=2, snapshot_grace_s=0.0)
    for number, batch_id in enumerate((1, 2, 3, 10, 20, 30)):
        stream.run(batch_id, ids(number))
    assert len(lake.load().metadata.snapshots) <= 3
    assert len([name for name in lake.metadata_files() if name.startswith("snap-")]) <= 4
    assert lake.ids() == [0, 1, 2, 3, 4, 5]


# Responses that are lost ----------------------------------------------------------------------------------


def test_a_batch_that_landed_is_committed_whatever_the_answer(
    stream: IcebergQuery, lake: Lake, network: LossyProxy
) -> None:
    """Of a request that came twice, the second is refused: by the batch itself."""
    faults: tuple[Fault, ...] = (
        "response lost",
        "landed, answered 500",
        "landed, answered 502",
        "landed, answered 503",
        "landed, answered 504",
        "sent twice",
    )
    for batch_id, fault in enumerate(faults, 1):
        written = stream.write(batch_id, ids(2 + batch_id))
        network.spend(fault, on=COMMIT)
        assert isinstance(stream.commit(written), Committed), fault
        assert len(network.spent()) == 1
        assert stream.state(batch_id) is COMMITTED
        assert lake.ids() == [*range(1, 3 + batch_id)], fault


def test_a_lost_response_while_the_table_cannot_be_read_is_found_by_recovery(
    stream: IcebergQuery, lake: Lake, network: LossyProxy
) -> None:
    written = stream.write(1, ids(3))
    outage: list[Fault] = ["answered 503"] * 5
    network.spend("response lost", *outage, on=COMMIT, then_on_any=True)
    with pytest.raises(CommitStateUnknownError, match="penstock recover"):
        stream.commit(written)
    network.spend()
    assert stream.state(1) is PREPARED
    (recovered,) = stream.recover()
    assert (recovered.state, recovered.reason) == (COMMITTED, "found in the table")
    assert lake.ids() == [1, 2, 3]


def test_a_table_whose_creation_nobody_confirms_is_used(lake: Lake, network: LossyProxy) -> None:
    network.spend("response lost", on="POST /tables HTTP")
    stream = lake.stream(network.url)
    stream.run(0, ids(1))
    assert network.spent()
    assert lake.ids() == [1]


def test_a_table_whose_creation_is_lost_is_created_by_the_next_start(lake: Lake, network: LossyProxy) -> None:
    network.spend("request lost", on="POST /tables HTTP")
    stream = lake.stream(network.url)
    with pytest.raises(RetryableError, match="cannot create the table"):
        stream.write(0, ids(1))
    stream.run(0, ids(1))
    assert lake.ids() == [1]


@pytest.mark.parametrize("fault", ["response lost", "request lost"])
def test_a_branch_whose_creation_nobody_confirms_is_there_at_the_next_start(
    stream: IcebergQuery, lake: Lake, network: LossyProxy, fault: Fault
) -> None:
    audit = lake.stream(network.url, query_id="audit", branch="audit")
    network.spend(fault, on=COMMIT)
    with pytest.raises(RetryableError, match="branch 'audit'"):
        audit.write(0, ids(3))
    audit.run(0, ids(3))
    assert lake.ids("audit") == [1, 2, 3]
    assert lake.ids() == [1, 2]


@pytest.mark.parametrize("fault", ["response lost", "request lost", "request late"])
def test_an_expiry_that_nobody_confirms_deletes_no_file_that_is_needed(
    lake: Lake, network: LossyProxy, fault: Fault
) -> None:
    stream = lake.stream(network.url, snapshots_max=2, snapshot_grace_s=0.0)
    for batch_id in range(1, 5):
        stream.run(batch_id, ids(batch_id))
    stream.commit(stream.write(10, ids(5)))
    network.spend(fault, on=COMMIT)
    with open_store(stream.store_url) as store:
        with suppress(PenstockError):
            stream.sink.maintain(store, 10)
        assert network.spent()
        stream.sink.maintain(store, 10)
    assert lake.ids() == [1, 2, 3, 4, 5]
    network.deliver_late()
    stream.run(20, ids(6))
    assert lake.ids() == [1, 2, 3, 4, 5, 6]
    assert len(lake.load().metadata.snapshots) <= 3


# Requests that are lost or late ---------------------------------------------------------------------------


def test_a_lost_request_leaves_the_state_unknown_and_recovery_commits(
    stream: IcebergQuery, lake: Lake, network: LossyProxy
) -> None:
    faults: tuple[Fault, ...] = (
        "request lost",
        "answered 500",
        "answered 502",
        "answered 503",
        "answered 504",
        "denied",
    )
    for batch_id, fault in enumerate(faults, 1):
        written = stream.write(batch_id, ids(2 + batch_id))
        network.spend(fault, on=COMMIT)
        with pytest.raises(CommitStateUnknownError, match=f"may or may not be .* rest:{lake.name}"):
            stream.commit(written)
        assert len(network.spent()) == 1
        assert stream.state(batch_id) is PREPARED
        (recovered,) = stream.recover()
        assert (recovered.state, recovered.reason) == (COMMITTED, "Committed"), fault
        assert stream.state(batch_id) is COMMITTED
        assert lake.ids() == [*range(1, 3 + batch_id)], fault


@pytest.mark.parametrize("format_version", [1, 2])
def test_a_late_request_is_refused_once_its_retry_has_landed(
    lake: Lake, network: LossyProxy, format_version: int
) -> None:
    """In format version 1 no sequence number stands in its way: the branch's head alone does."""
    stream = lake.stream(network.url, format_version=format_version)
    stream.run(0, ids(1, 2))
    written = stream.write(1, ids(3))
    network.spend("request late", on=COMMIT)
    with pytest.raises(CommitStateUnknownError):
        stream.commit(written)
    assert stream.state(1) is PREPARED
    stream.recover()
    assert network.deliver_late() == [409]
    assert stream.state(1) is COMMITTED
    assert lake.ids() == [1, 2, 3]
    assert lake.load().format_version == format_version


def test_a_late_request_that_lands_before_its_retry_is_found(
    stream: IcebergQuery, lake: Lake, network: LossyProxy
) -> None:
    written = stream.write(1, ids(3))
    network.spend("request late", on=COMMIT)
    with pytest.raises(CommitStateUnknownError):
        stream.commit(written)
    assert network.deliver_late() == [200]
    (recovered,) = stream.recover()
    assert (recovered.state, recovered.reason) == (COMMITTED, "found in the table")
    assert lake.ids() == [1, 2, 3]


def test_a_late_request_that_lands_while_its_retry_is_under_way_wins(
    stream: IcebergQuery, lake: Lake, network: LossyProxy
) -> None:
    """The retry has looked, and is refused by the branch's head: it must not delete what has landed."""
    written = stream.write(1, ids(3))
    network.spend("request late", on=COMMIT)
    with pytest.raises(CommitStateUnknownError):
        stream.commit(written)
    with at_point("commit.start", network.deliver_late):
        (recovered,) = stream.recover()
    assert recovered.state is COMMITTED
    assert lake.ids() == [1, 2, 3]


def test_a_late_first_batch_into_an_empty_table_lands_once(lake: Lake, network: LossyProxy) -> None:
    """There is no head yet that the request could require."""
    stream = lake.stream(network.url)
    written = stream.write(0, ids(1))
    network.spend("request late", on=COMMIT)
    with pytest.raises(CommitStateUnknownError):
        stream.commit(written)
    stream.recover()
    assert network.deliver_late() == [409]
    assert lake.ids() == [1]


def test_a_late_overwrite_does_not_undo_later_batches(
    stream: IcebergQuery, lake: Lake, network: LossyProxy
) -> None:
    written = stream.write(1, ids(3), overwrite=True)
    network.spend("request late", on=COMMIT)
    with pytest.raises(CommitStateUnknownError):
        stream.commit(written)
    stream.recover()
    stream.run(2, ids(4))
    assert network.deliver_late() == [409]
    assert lake.ids() == [3, 4]


def test_a_late_request_of_a_batch_that_brings_a_column_is_refused_too(
    lake: Lake, network: LossyProxy
) -> None:
    stream = lake.stream(network.url, add_columns=True)
    stream.run(0, ids(1))
    written = stream.write(1, ids(2).append_column("name", pa.array(["b"])))
    network.spend("request late", on=COMMIT)
    with pytest.raises(CommitStateUnknownError):
        stream.commit(written)
    stream.recover()
    assert network.deliver_late() == [409]
    assert iceberg_rows(lake.load().metadata_location, "id, name") == [(1, None), (2, "b")]
    assert lake.ids() == [1, 2]


# Servers that are gone or stall ---------------------------------------------------------------------------


def test_a_refused_connection_leaves_the_batch_prepared(lake: Lake) -> None:
    with lossy_proxy(lake.server.uri) as gone:
        stream = lake.stream(gone.url)
        stream.run(0, ids(1))
        written = stream.write(1, ids(2))
    with pytest.raises(RetryableError, match=r"refused.*Nothing was committed"):
        stream.commit(written)
    assert stream.state(1) is PREPARED
    again = lake.stream()
    again.recover()
    assert again.state(1) is COMMITTED
    assert lake.ids() == [1, 2]


def test_a_connection_refused_at_the_commit_itself_leaves_the_state_unknown(lake: Lake) -> None:
    """Whether the request went out is not for an error's text to say."""
    with lossy_proxy(lake.server.uri) as proxy:
        stream = lake.stream(proxy.url)
        written = stream.write(0, ids(1))
        outage: list[Fault] = ["request lost"] * 10
        with at_point("commit.start", lambda: proxy.spend(*outage)), pytest.raises(CommitStateUnknownError):
            stream.commit(written)
    lake.stream().recover()
    assert lake.ids() == [1]


def test_a_server_that_comes_back_takes_the_batch_that_waits(lake: Lake) -> None:
    """In another process and at another address; its database is the same."""
    with lossy_proxy(lake.server.uri) as gone:
        stream = lake.stream(gone.url)
        stream.run(0, ids(1))
        written = stream.write(1, ids(2))
    with pytest.raises(RetryableError):
        stream.commit(written)
    with rest_catalog_server(lake.server.warehouse) as server:
        again = lake.stream(server.uri)
        assert again.key == stream.key
        again.recover()
        again.run(2, ids(3))
    assert [again.state(batch_id) for batch_id in range(3)] == [COMMITTED] * 3
    assert lake.ids() == [1, 2, 3]


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("properties", [{}, {"credential": "me:secret"}, {"token": "t"}], ids=str)
def test_a_server_that_never_answers_does_not_hold_the_query(
    silent: str, monkeypatch: pytest.MonkeyPatch, properties: dict[str, str]
) -> None:
    """From the first request on, be it for the configuration or for a token."""
    monkeypatch.setitem(catalogs.REQUEST_TIMEOUTS_S, "rest", 0.5)
    config = CatalogConfig.of("silent", {"type": "rest", "uri": silent, **properties})
    with pytest.raises(RetryableError, match="timed out"):
        open_catalog(config)


def test_a_commit_that_is_never_answered_leaves_the_state_unknown(
    lake: Lake, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(catalogs.REQUEST_TIMEOUTS_S, "rest", 0.5)
    stream = lake.stream(properties={"x": "a catalog of its own"})
    stream.run(0, ids(1))
    written = stream.write(1, ids(2))
    catalog = open_catalog(stream.sink._catalog)
    assert isinstance(catalog, RestCatalog)
    with at_point("commit.start", lambda: monkeypatch.setattr(catalog, "uri", silent)):
        with pytest.raises(CommitStateUnknownError, match="timed out"):
            stream.commit(written)
    monkeypatch.setattr(catalog, "uri", lake.server.uri)
    assert stream.state(1) is PREPARED
    stream.recover()
    assert lake.ids() == [1, 2]


def test_every_session_of_a_rest_catalog_has_the_timeout(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """`_config_headers` and `_session` are pyiceberg's own affair: this notices when they change."""
    catalog = open_catalog(lake.stream().sink._catalog)
    assert isinstance(catalog, RestCatalogWithTimeouts)
    asked: list[object] = []

    def send(*_: object, **options: object) -> requests.Response:
        asked.append(options["timeout"])
        raise requests.Timeout

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)
    for _ in ("the one it has", "a new one"):
        with pytest.raises(requests.Timeout):
            catalog._session.get("http://nowhere")
        catalog._session = catalog._create_session()
    assert asked == [(10, 300)] * 2


@pytest.mark.parametrize(
    ("properties", "is_rest"),
    [
        ({"uri": "http://127.0.0.1:1"}, True),
        ({"uri": "https://127.0.0.1:1", "type": "REST"}, True),
        ({"uri": "sqlite://", "type": "sql"}, False),
        ({"uri": "sqlite://"}, False),
    ],
    ids=str,
)
def test_what_pyiceberg_takes_for_a_rest_catalog_gets_the_timeout(
    monkeypatch: pytest.MonkeyPatch, properties: dict[str, str], is_rest: bool
) -> None:
    monkeypatch.setattr(RestCatalogWithTimeouts, "_fetch_config", lambda _: None)
    catalog = open_catalog(CatalogConfig.of("c", {**properties, "for": "this test"}))
    assert isinstance(catalog, RestCatalogWithTimeouts) is is_rest


def test_a_rest_catalog_of_pyicebergs_own_configuration_gets_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RestCatalogWithTimeouts, "_fetch_config", lambda _: None)
    monkeypatch.setenv("PYICEBERG_CATALOG__CONFIGURED__URI", "http://127.0.0.1:1")
    assert isinstance(open_catalog(CatalogConfig.of("configured", {})), RestCatalogWithTimeouts)


# Others at the same table ---------------------------------------------------------------------------------


def test_conflicts_are_tried_again_and_leave_no_file_behind(stream: IcebergQuery, lake: Lake) -> None:
    written = stream.write(1, ids(3))
    with at_point("commit.start", lambda: lake.append(100), times=5):
        assert isinstance(stream.commit(written), Committed)
    assert lake.ids() == [1, 2, 3, *[100] * 5]
    needed = {Path(name).name for name in named_files(lake.load())}
    assert lake.metadata_files() <= needed


def test_more_conflicts_than_attempts_leave_the_batch_for_the_next_start(lake: Lake) -> None:
    stream = lake.stream(commit_attempts_max=3)
    stream.run(0, ids(1))
    written = stream.write(1, ids(2))
    with (
        at_point("commit.start", lambda: lake.append(100), times=3),
        pytest.raises(RetryableError, match="3 times"),
    ):
        stream.commit(written)
    assert stream.state(1) is PREPARED
    assert lake.ids() == [1, 100, 100, 100]
    stream.recover()
    assert stream.state(1) is COMMITTED
    assert lake.ids() == [1, 2, 100, 100, 100]


def test_a_twin_with_another_connection_and_we_commit_once(stream: IcebergQuery, lake: Lake) -> None:
    """The twin commits while our request is on its way: the requirement on the head refuses ours."""
    twin = lake.stream()
    written = stream.write(1, ids(3))
    with at_point("commit.start", twin.recover):
        assert isinstance(stream.commit(written), Committed)
    assert stream.state(1) is COMMITTED
    assert lake.ids() == [1, 2, 3]


def test_a_driver_that_wakes_up_after_its_twin_went_on_adds_nothing(
    stream: IcebergQuery, lake: Lake, network: LossyProxy
) -> None:
    written = stream.write(1, ids(3))
    network.spend("request late", on=COMMIT)
    with pytest.raises(CommitStateUnknownError):
        stream.commit(written)
    twin = lake.stream()
    twin.run(2, ids(4))
    assert network.deliver_late() == [409]
    assert isinstance(stream.commit(written), AlreadyCommitted)
    assert lake.ids() == [1, 2, 3, 4]


def test_a_partitioning_that_another_sets_meanwhile_stops_the_batch(stream: IcebergQuery, lake: Lake) -> None:
    written = stream.write(1, ids(3))

    def partition() -> None:
        with lake.load().update_spec() as update:
            update.add_identity("id")

    with (
        at_point("commit.start", partition),
        pytest.raises(SchemaMismatchError, match="now partitioned by id"),
    ):
        stream.commit(written)
    assert stream.state(1) is PREPARED
    assert lake.ids() == [1, 2]


@pytest.mark.parametrize("is_recreated", [False, True])
def test_a_table_dropped_while_the_commit_is_sent_is_said(
    stream: IcebergQuery, lake: Lake, is_recreated: bool
) -> None:
    written = stream.write(1, ids(3))

    def drop() -> None:
        lake.catalog.drop_table(lake.name)
        if is_recreated:
            lake.catalog.create_table(lake.name, ids().schema)

    said = "dropped and re-created" if is_recreated else "The Iceberg table .* no longer exists"
    with at_point("commit.start", drop), pytest.raises(TableChangedError, match=said):
        stream.commit(written)
    if is_recreated:
        with pytest.raises(TableChangedError):
            stream.recover()
        assert lake.load().current_snapshot() is None
    else:
        (recovered,) = stream.recover()
        assert "files are missing" in recovered.reason
    assert stream.state(1) is PREPARED


# Secrets --------------------------------------------------------------------------------------------------

SECRETS = {
    "token": "t0ken-of-mine",
    "header.Authorization": "Bearer b3arer-of-mine",
    "header.X-Api-Key": "k3y-of-mine",
}
HIDDEN = ("t0ken", "b3arer", "k3y", "cr3dential")


def assert_hides(error: PenstockError) -> None:
    text = "".join(traceback.format_exception(error)) + repr(error)
    assert [secret for secret in HIDDEN if secret in text] == []


@pytest.mark.parametrize("is_read_lost", [False, True])
@pytest.mark.parametrize("fault", ["echoed", "request lost", "denied"])
def test_no_secret_of_the_catalog_shows_in_an_error(
    lake: Lake, network: LossyProxy, fault: Fault, is_read_lost: bool
) -> None:
    """Even if the server's answer quotes the headers that it was sent."""
    stream = lake.stream(network.url, properties=SECRETS)
    written = stream.write(0, ids(1))
    faults: list[Fault] = [fault] * 5
    network.spend(*faults, on="" if is_read_lost else COMMIT)
    with pytest.raises(RetryableError if is_read_lost else CommitStateUnknownError) as caught:
        stream.commit(written)
    assert_hides(caught.value)
    assert fault != "echoed" or "***" in str(caught.value)


def test_secrets_of_pyicebergs_own_configuration_do_not_show_either(
    lake: Lake, network: LossyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__REST__HEADER__X_API_KEY", "k3y-of-mine")
    monkeypatch.setenv("PYICEBERG_CATALOG__REST__TOKEN", "t0ken-of-mine")
    stream = lake.stream(network.url, properties={"unlike": "another test's"})
    written = stream.write(0, ids(1))
    network.spend("echoed", on=COMMIT)
    with pytest.raises(CommitStateUnknownError, match=r"\*\*\*") as caught:
        stream.commit(written)
    assert_hides(caught.value)


def test_a_credential_that_is_refused_does_not_show(lake: Lake, network: LossyProxy) -> None:
    stream = lake.stream(network.url, properties={"credential": "me:cr3dential-of-mine"})
    network.spend("echoed", "echoed")
    with pytest.raises(PenstockError) as caught:
        stream.write(0, ids(1))
    assert network.spent()
    assert_hides(caught.value)
