"""Batches over a REST catalog, while the network loses, delays and repeats what it carries.

After each: every row once, for two readers; every file that a snapshot names is there; the store says what
the protocol says.
"""

from __future__ import annotations

import socket
import traceback
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog
from servers.lossy_proxy import Fault, LossyProxy, lossy_proxy
from servers.rest_catalog import rest_catalog_server
from tests.support.catalogs import COMMIT, RestLake, StoredQuery
from tests.support.lakes import ids

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
from penstock.testing.faults import at_point

PREPARED, COMMITTED = ManifestState.PREPARED, ManifestState.COMMITTED


@pytest.fixture
def network(rest_lake: RestLake) -> LossyProxy:
    return rest_lake.proxy


@pytest.fixture
def lake(rest_lake: RestLake) -> RestLake:
    return rest_lake


@pytest.fixture
def stream(lake: RestLake) -> StoredQuery:
    """Through the proxy; its first batch has landed."""
    stream = lake.stream(lake.through_proxy)
    stream.run(0, ids(1, 2))
    return stream


# Responses that are lost ----------------------------------------------------------------------------------


def test_a_batch_that_landed_is_committed_whatever_the_answer(
    stream: StoredQuery, lake: RestLake, network: LossyProxy
) -> None:
    """Of a request that came twice, the second is refused: by the batch itself."""
    faults: tuple[Fault, ...] = (
        "response lost",
        "committed, answered 500",
        "committed, answered 502",
        "committed, answered 503",
        "committed, answered 504",
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
    stream: StoredQuery, lake: RestLake, network: LossyProxy
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


def test_a_table_whose_creation_nobody_confirms_is_used(lake: RestLake, network: LossyProxy) -> None:
    network.spend("response lost", on="POST /tables HTTP")
    stream = lake.stream(network.url)
    stream.run(0, ids(1))
    assert network.spent()
    assert lake.ids() == [1]


def test_a_table_whose_creation_is_lost_is_created_by_the_next_start(
    lake: RestLake, network: LossyProxy
) -> None:
    network.spend("request lost", on="POST /tables HTTP")
    stream = lake.stream(network.url)
    with pytest.raises(RetryableError, match="cannot create the table"):
        stream.write(0, ids(1))
    stream.run(0, ids(1))
    assert lake.ids() == [1]


@pytest.mark.parametrize("fault", ["response lost", "request lost"])
def test_a_branch_whose_creation_nobody_confirms_is_there_at_the_next_start(
    stream: StoredQuery, lake: RestLake, network: LossyProxy, fault: Fault
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
    lake: RestLake, network: LossyProxy, fault: Fault
) -> None:
    stream = lake.stream(network.url, keepSnapshots="2", snapshotGrace="0s")
    for batch_id in range(1, 5):
        stream.run(batch_id, ids(batch_id))
    stream.commit(stream.write(10, ids(5)))
    network.spend(fault, on=COMMIT)
    with suppress(PenstockError):
        stream.maintain(10)
    assert network.spent()
    stream.maintain(10)
    assert lake.ids() == [1, 2, 3, 4, 5]
    network.deliver_late()
    stream.run(20, ids(6))
    assert lake.ids() == [1, 2, 3, 4, 5, 6]
    assert len(lake.load().metadata.snapshots) <= 3


# Requests that are lost or late ---------------------------------------------------------------------------


def test_a_lost_request_leaves_the_state_unknown_and_recovery_commits(
    stream: StoredQuery, lake: RestLake, network: LossyProxy
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
    lake: RestLake, network: LossyProxy, format_version: int
) -> None:
    """In format version 1 no sequence number stands in its way: the branch's head alone does."""
    stream = lake.stream(network.url, formatVersion=str(format_version))
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
    stream: StoredQuery, lake: RestLake, network: LossyProxy
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
    stream: StoredQuery, lake: RestLake, network: LossyProxy
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


def test_a_late_first_batch_into_an_empty_table_lands_once(lake: RestLake, network: LossyProxy) -> None:
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
    stream: StoredQuery, lake: RestLake, network: LossyProxy
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
    lake: RestLake, network: LossyProxy
) -> None:
    stream = lake.stream(network.url, schemaEvolution="addColumns")
    stream.run(0, ids(1))
    written = stream.write(1, ids(2).append_column("name", pa.array(["b"])))
    network.spend("request late", on=COMMIT)
    with pytest.raises(CommitStateUnknownError):
        stream.commit(written)
    stream.recover()
    assert network.deliver_late() == [409]
    assert lake.rows("id, name") == [(1, None), (2, "b")]
    assert lake.ids() == [1, 2]


# Servers that are gone or stall ---------------------------------------------------------------------------


def test_a_connection_refused_at_the_commit_itself_leaves_the_state_unknown(lake: RestLake) -> None:
    """Whether the request went out is not for an error's text to say."""
    with lossy_proxy(lake.server.uri) as proxy:
        stream = lake.stream(proxy.url)
        written = stream.write(0, ids(1))
        outage: list[Fault] = ["request lost"] * 10
        with at_point("commit.start", lambda: proxy.spend(*outage)), pytest.raises(CommitStateUnknownError):
            stream.commit(written)
    lake.stream().recover()
    assert lake.ids() == [1]


def test_a_server_that_comes_back_takes_the_batch_that_waits(lake: RestLake) -> None:
    """In another process and at another address; its database is the same."""
    with lossy_proxy(lake.server.uri) as gone:
        stream = lake.stream(gone.url)
        stream.run(0, ids(1))
        written = stream.write(1, ids(2))
    with pytest.raises(RetryableError):
        stream.commit(written)
    with rest_catalog_server(lake.server.warehouse) as server:
        again = lake.stream(server.uri)
        assert again.query.stream == stream.query.stream
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
    lake: RestLake, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(catalogs.REQUEST_TIMEOUTS_S, "rest", 0.5)
    stream = lake.stream(properties={"x": "a catalog of its own"})
    stream.run(0, ids(1))
    written = stream.write(1, ids(2))
    catalog = stream.catalog_in_use()
    assert isinstance(catalog, RestCatalog)
    with at_point("commit.start", lambda: monkeypatch.setattr(catalog, "uri", silent)):
        with pytest.raises(CommitStateUnknownError, match="timed out"):
            stream.commit(written)
    monkeypatch.setattr(catalog, "uri", lake.server.uri)
    assert stream.state(1) is PREPARED
    stream.recover()
    assert lake.ids() == [1, 2]


def test_every_session_of_a_rest_catalog_has_the_timeout(
    lake: RestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`_config_headers` and `_session` are pyiceberg's own affair: this notices when they change."""
    catalog = lake.stream().catalog_in_use()
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


def test_a_driver_that_wakes_up_after_its_twin_went_on_adds_nothing(
    stream: StoredQuery, lake: RestLake, network: LossyProxy
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


def test_a_partitioning_that_another_sets_meanwhile_stops_the_batch(
    stream: StoredQuery, lake: RestLake
) -> None:
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
    stream: StoredQuery, lake: RestLake, is_recreated: bool
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
    lake: RestLake, network: LossyProxy, fault: Fault, is_read_lost: bool
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
    lake: RestLake, network: LossyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__REST__HEADER__X_API_KEY", "k3y-of-mine")
    monkeypatch.setenv("PYICEBERG_CATALOG__REST__TOKEN", "t0ken-of-mine")
    stream = lake.stream(network.url, properties={"unlike": "another test's"})
    written = stream.write(0, ids(1))
    network.spend("echoed", on=COMMIT)
    with pytest.raises(CommitStateUnknownError, match=r"\*\*\*") as caught:
        stream.commit(written)
    assert_hides(caught.value)


def test_a_credential_that_is_refused_does_not_show(lake: RestLake, network: LossyProxy) -> None:
    stream = lake.stream(network.url, properties={"credential": "me:cr3dential-of-mine"})
    network.spend("echoed", "echoed")
    with pytest.raises(PenstockError) as caught:
        stream.write(0, ids(1))
    assert network.spent()
    assert_hides(caught.value)
