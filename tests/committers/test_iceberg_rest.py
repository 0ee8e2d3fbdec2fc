"""Batches with a REST catalog, with lost, delayed and repeated requests.

After each fault every row is in the table once for two readers, every file that a snapshot names exists, and
the store has the state of the protocol.
"""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog
from servers.lossy_proxy import Fault, lossy_proxy
from servers.rest_catalog import rest_catalog_server
from tests.support.catalogs import COMMIT, RestLake, StoredQuery, assert_hides
from tests.support.lakes import ids
from tests.support.query import Written

from penstock.committers.contract import Committed, ManifestState
from penstock.committers.errors import (
    CommitStateUnknownError,
    PenstockError,
    RetryableError,
)
from penstock.committers.iceberg.catalog import CatalogConfig, open_catalog
from penstock.committers.iceberg.library import timeouts
from penstock.committers.iceberg.library.rest import RestCatalogWithTimeouts
from penstock.testing.faults import at_point

PREPARED, COMMITTED = ManifestState.PREPARED, ManifestState.COMMITTED


@pytest.fixture
def lake(rest_lake: RestLake) -> RestLake:
    return rest_lake


def commit_late(stream: StoredQuery, lake: RestLake, written: Written) -> None:
    """A commit whose request does not reach the server before its time-out."""
    lake.proxy.spend("request late", on=COMMIT)
    with pytest.raises(CommitStateUnknownError):
        stream.commit(written)


# Responses that are lost -------------------------------------------------------------------------------


def test_a_committed_batch_is_always_found(stream: StoredQuery, lake: RestLake) -> None:
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
        lake.proxy.spend(fault, on=COMMIT)
        assert isinstance(stream.commit(written), Committed), fault
        assert len(lake.proxy.spent()) == 1
        assert stream.state(batch_id) is COMMITTED
        assert lake.ids() == [*range(1, 3 + batch_id)], fault


def test_recovery_finds_a_batch_with_a_lost_response(stream: StoredQuery, lake: RestLake) -> None:
    written = stream.write(1, ids(3))
    outage: list[Fault] = ["answered 503"] * 5
    lake.proxy.spend("response lost", *outage, on=COMMIT, then_on_any=True)
    with pytest.raises(CommitStateUnknownError, match="penstock recover"):
        stream.commit(written)
    lake.proxy.spend()
    assert stream.state(1) is PREPARED
    (recovered,) = stream.recover()
    assert (recovered.state, recovered.reason) == (COMMITTED, "found in the table")
    assert lake.ids() == [1, 2, 3]


def test_a_table_whose_creation_nobody_confirms_is_used(lake: RestLake) -> None:
    lake.proxy.spend("response lost", on="POST /tables HTTP")
    stream = lake.stream(lake.proxy.url)
    stream.run(0, ids(1))
    assert lake.proxy.spent()
    assert lake.ids() == [1]


def test_a_table_whose_creation_is_lost_is_created_by_the_next_start(lake: RestLake) -> None:
    lake.proxy.spend("request lost", on="POST /tables HTTP")
    stream = lake.stream(lake.proxy.url)
    with pytest.raises(RetryableError, match="cannot create the table"):
        stream.write(0, ids(1))
    stream.run(0, ids(1))
    assert lake.ids() == [1]


@pytest.mark.parametrize("fault", ["response lost", "request lost"])
def test_an_unconfirmed_branch_is_used_later(stream: StoredQuery, lake: RestLake, fault: Fault) -> None:
    audit = lake.stream(lake.proxy.url, query_id="audit", branch="audit")
    lake.proxy.spend(fault, on=COMMIT)
    with pytest.raises(RetryableError, match="branch 'audit'"):
        audit.write(0, ids(3))
    audit.run(0, ids(3))
    assert lake.ids("audit") == [1, 2, 3]
    assert lake.ids() == [1, 2]


@pytest.mark.parametrize("fault", ["response lost", "request lost", "request late"])
def test_an_expiry_that_nobody_confirms_deletes_no_file_that_is_needed(lake: RestLake, fault: Fault) -> None:
    stream = lake.stream(lake.proxy.url, keepSnapshots="2", snapshotGrace="0s")
    for batch_id in range(4):
        stream.run(batch_id, ids(batch_id + 1))
    stream.commit(stream.write(10, ids(5)))
    lake.proxy.spend(fault, on=COMMIT)
    with suppress(PenstockError):
        stream.maintain(10)
    assert lake.proxy.spent()
    stream.maintain(10)
    assert lake.ids() == [1, 2, 3, 4, 5]
    lake.proxy.deliver_late()
    stream.run(20, ids(6))
    assert lake.ids() == [1, 2, 3, 4, 5, 6]
    assert len(lake.load().metadata.snapshots) <= 3


# Requests that are lost or late ------------------------------------------------------------------------


def test_a_lost_request_is_committed_by_recovery(stream: StoredQuery, lake: RestLake) -> None:
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
        lake.proxy.spend(fault, on=COMMIT)
        with pytest.raises(CommitStateUnknownError, match=f"may or may not be .* rest:{lake.name}"):
            stream.commit(written)
        assert len(lake.proxy.spent()) == 1
        assert stream.state(batch_id) is PREPARED
        (recovered,) = stream.recover()
        assert (recovered.state, recovered.reason) == (COMMITTED, "Committed"), fault
        assert stream.state(batch_id) is COMMITTED
        assert lake.ids() == [*range(1, 3 + batch_id)], fault


@pytest.mark.parametrize("format_version", [1, 2])
def test_a_late_request_is_refused_after_its_retry(lake: RestLake, format_version: int) -> None:
    """In format version 1 no sequence number stands in its way: the branch's head alone does."""
    stream = lake.stream(lake.proxy.url, formatVersion=str(format_version))
    stream.run(0, ids(1, 2))
    written = stream.write(1, ids(3))
    commit_late(stream, lake, written)
    assert stream.state(1) is PREPARED
    stream.recover()
    assert lake.proxy.deliver_late() == [409]
    assert stream.state(1) is COMMITTED
    assert lake.ids() == [1, 2, 3]
    assert lake.load().format_version == format_version


@pytest.mark.parametrize("is_found", [True, False])
def test_a_late_request_before_its_retry_wins(stream: StoredQuery, lake: RestLake, is_found: bool) -> None:
    """If the retry has loaded the table before, it is refused, and must not delete committed files."""
    commit_late(stream, lake, stream.write(1, ids(3)))
    if is_found:
        assert lake.proxy.deliver_late() == [200]
        (recovered,) = stream.recover()
        assert recovered.reason == "found in the table"
    else:
        with at_point("commit.start", lake.proxy.deliver_late):
            (recovered,) = stream.recover()
    assert recovered.state is COMMITTED
    assert lake.ids() == [1, 2, 3]


def test_a_late_overwrite_does_not_undo_later_batches(stream: StoredQuery, lake: RestLake) -> None:
    written = stream.write(1, ids(3), overwrite=True)
    commit_late(stream, lake, written)
    stream.recover()
    stream.run(2, ids(4))
    assert lake.proxy.deliver_late() == [409]
    assert lake.ids() == [3, 4]


def test_a_late_request_of_a_batch_that_brings_a_column_is_refused_too(lake: RestLake) -> None:
    stream = lake.stream(lake.proxy.url, schemaEvolution="addColumns")
    stream.run(0, ids(1))
    written = stream.write(1, ids(2).append_column("name", pa.array(["b"])))
    commit_late(stream, lake, written)
    stream.recover()
    assert lake.proxy.deliver_late() == [409]
    assert lake.rows("id, name") == [(1, None), (2, "b")]
    assert lake.ids() == [1, 2]


# Servers that are down or silent -----------------------------------------------------------------------


def test_a_connection_refused_at_the_commit_itself_leaves_the_state_unknown(lake: RestLake) -> None:
    """The text of an error does not say whether the request was sent."""
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
    with lossy_proxy(lake.server.uri) as proxy:
        stream = lake.stream(proxy.url)
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


@pytest.mark.parametrize("properties", [{}, {"credential": "me:secret"}, {"token": "t"}], ids=str)
def test_a_silent_server_does_not_block_the_query(
    silent: int, monkeypatch: pytest.MonkeyPatch, properties: dict[str, str]
) -> None:
    """From the first request, for the configuration or for a token."""
    monkeypatch.setitem(timeouts.REQUEST_TIMEOUTS_S, "rest", 0.5)
    config = CatalogConfig.of("silent", {"type": "rest", "uri": f"http://127.0.0.1:{silent}", **properties})
    with pytest.raises(RetryableError, match="timed out"):
        open_catalog(config)


def test_a_commit_without_answer_leaves_the_state_unknown(
    lake: RestLake, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(timeouts.REQUEST_TIMEOUTS_S, "rest", 0.5)
    stream = lake.stream(properties={"x": "a catalog of its own"})
    stream.run(0, ids(1))
    written = stream.write(1, ids(2))
    catalog = stream.catalog_in_use()
    assert isinstance(catalog, RestCatalog)
    with at_point("commit.start", lambda: monkeypatch.setattr(catalog, "uri", f"http://127.0.0.1:{silent}")):
        with pytest.raises(CommitStateUnknownError, match="timed out"):
            stream.commit(written)
    monkeypatch.setattr(catalog, "uri", lake.server.uri)
    assert stream.state(1) is PREPARED
    stream.recover()
    assert lake.ids() == [1, 2]


def test_every_rest_session_has_the_timeout(lake: RestLake, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_rest_catalog_of_pyicebergs_configuration_gets_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RestCatalogWithTimeouts, "_fetch_config", lambda _: None)
    monkeypatch.setenv("PYICEBERG_CATALOG__CONFIGURED__URI", "http://127.0.0.1:1")
    assert isinstance(open_catalog(CatalogConfig.of("configured", {})), RestCatalogWithTimeouts)


# Secrets -----------------------------------------------------------------------------------------------

SECRETS = {
    "token": "t0ken-of-mine",
    "header.Authorization": "Bearer b3arer-of-mine",
    "header.X-Api-Key": "k3y-of-mine",
}


@pytest.mark.parametrize("is_read_lost", [False, True])
@pytest.mark.parametrize("fault", ["echoed", "request lost", "denied"])
def test_no_secret_of_the_catalog_shows_in_an_error(lake: RestLake, fault: Fault, is_read_lost: bool) -> None:
    """Also if the response of the server quotes the request headers."""
    stream = lake.stream(lake.proxy.url, properties=SECRETS)
    written = stream.write(0, ids(1))
    faults: list[Fault] = [fault] * 5
    lake.proxy.spend(*faults, on="" if is_read_lost else COMMIT)
    with pytest.raises(RetryableError if is_read_lost else CommitStateUnknownError) as caught:
        stream.commit(written)
    assert_hides(caught.value, "t0ken", "b3arer", "k3y", "cr3dential")
    assert fault != "echoed" or "***" in str(caught.value)


def test_secrets_configured_by_pyiceberg_are_hidden(lake: RestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__REST__HEADER__X_API_KEY", "k3y-of-mine")
    monkeypatch.setenv("PYICEBERG_CATALOG__REST__TOKEN", "t0ken-of-mine")
    stream = lake.stream(lake.proxy.url, properties={"unlike": "another test's"})
    written = stream.write(0, ids(1))
    lake.proxy.spend("echoed", on=COMMIT)
    with pytest.raises(CommitStateUnknownError, match=r"\*\*\*") as caught:
        stream.commit(written)
    assert_hides(caught.value, "t0ken", "b3arer", "k3y", "cr3dential")


def test_a_credential_that_is_refused_does_not_show(lake: RestLake) -> None:
    stream = lake.stream(lake.proxy.url, properties={"credential": "me:cr3dential-of-mine"})
    lake.proxy.spend("echoed", "echoed")
    with pytest.raises(PenstockError) as caught:
        stream.write(0, ids(1))
    assert lake.proxy.spent()
    assert_hides(caught.value, "t0ken", "b3arer", "k3y", "cr3dential")
