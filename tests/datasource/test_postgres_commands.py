"""`penstock status`, `show`, `recover` and `gc` on streams into a Postgres table."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import psycopg
import pytest
from pyspark.sql.types import LongType, StructField, StructType
from tests.support.cli import Ended, penstock
from tests.support.lakes import ids
from tests.support.postgres import PostgresQuery, query_into

from penstock.committers.contract import ManifestState, StreamKey
from penstock.committers.database import transaction
from penstock.committers.errors import RetryableError
from penstock.committers.protocol.batch_writes import COMMIT_WITHIN, GIVEN_UP_AFTER
from penstock.committers.store.sql import open_store
from penstock.datasource.committing import commit_batch_write
from penstock.datasource.planning.plan import plan_batch_write
from penstock.testing.conformance.query import payloads, task
from penstock.testing.faults import crash_at


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def query(new_postgres_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> PostgresQuery:
    monkeypatch.setenv("PGUSER", "postgres")
    return query_into(new_postgres_url())


def test_status_and_show_know_the_table_and_its_token(query: PostgresQuery, store_url: str) -> None:
    with open_store(store_url) as store:
        query.run(store, query.batch(0), ids(1, 2))
    status = json.loads(penstock(store_url, "status", "--table", "--json"))
    show = json.loads(penstock(store_url, "show", "q1", "0", "--json"))

    (stream,) = status["streams"]
    (oid,) = query.sql("SELECT 'events'::regclass::oid::text")[0]
    assert oid in json.dumps(stream)
    assert (show["in_table"], show["token_batch_id"], len(show["files"])) == ("yes", 0, 1)
    assert show["files"][0]["rows"] == 2


def test_status_reports_a_dropped_table(query: PostgresQuery, store_url: str) -> None:
    with open_store(store_url) as store:
        query.run(store, query.batch(0), ids(1))
    query.sql("DROP TABLE events")

    assert "dropped, moved or renamed" in penstock(store_url, "status", "--table", exit_code=1)


def test_recover_commits_what_was_prepared(query: PostgresQuery, store_url: str) -> None:
    with open_store(store_url) as store, crash_at("prepare.done"):
        query.run(store, query.batch(0), ids(1, 2))
    penstock(store_url, "recover")

    assert query.ids() == [1, 2]


def test_abort_drops_what_a_query_has_left(query: PostgresQuery, store_url: str) -> None:
    with open_store(store_url) as store:
        query.run(store, query.batch(0), ids(1))
        with crash_at("prepare.done"):
            query.run(store, query.batch(1), ids(2), ids(3))
    penstock(store_url, "abort", "q1", "--reason", "x", "--yes")

    assert query.staged() == []
    penstock(store_url, "recover")
    assert query.ids() == [1]


def test_an_accepted_table_gets_the_next_batches(query: PostgresQuery, store_url: str) -> None:
    with open_store(store_url) as store:
        query.run(store, query.batch(0), ids(1))
    query.sql("DROP TABLE events; CREATE TABLE events (id bigint)")
    penstock(store_url, "recover", "--accept-table", "--yes")
    with open_store(store_url) as store:
        query.run(store, query.batch(1), ids(2), run_id="r2")

    assert query.ids() == [2]


def test_gc_drops_staging_tables_that_nothing_needs(query: PostgresQuery, store_url: str) -> None:
    """Those of a batch that may still be committed, of other queries and of other tables are kept."""
    others = [query_into(query.url, "q2"), query.with_options(dbtable=f"{query.schema}.other")]
    with open_store(store_url) as store:
        plan = query.plan(store, query.batch(0))
        lost = query.write(plan, [ids(1)], run_id="lost")
        query.run(store, query.batch(0), ids(1), run_id="r2")
        with crash_at("prepare.done"):
            query.run(store, query.batch(1), ids(2), run_id="r2")
    with open_store(f"{store_url}-other") as store:
        for other in others:
            other.write(other.plan(store, other.batch(0)), [ids(9)])
    (name,) = [table.name for tables in payloads(lost) for table in tables]
    query.age_staged()
    assert len(query.staged()) == 4

    assert name in penstock(store_url, "gc", exit_code=1)
    assert len(query.staged()) == 4
    penstock(store_url, "gc", "--delete")
    assert len(query.staged()) == 3
    assert name not in query.staged()
    penstock(store_url, "recover")

    assert query.ids() == [1, 2]


@pytest.mark.parametrize(("began", "left"), [(GIVEN_UP_AFTER, 0), (COMMIT_WITHIN, 1)])
def test_gc_drops_the_staging_tables_of_a_batch_write_that_can_no_longer_be_committed(
    query: PostgresQuery, store_url: str, began: timedelta, left: int
) -> None:
    with open_store(store_url) as store:
        query.run(store, query.batch(0), ids(1))
    began_at = datetime.now(timezone.utc) - began - timedelta(hours=1)
    schema = StructType([StructField("id", LongType())])
    killed = plan_batch_write(query.sink(), schema, overwrite=False, now=lambda: began_at)
    message = killed.write(ids(9).to_batches(), task(killed.batch))
    query.age_staged()
    penstock(store_url, "gc", "--delete")

    assert len(query.staged()) == left
    with pytest.raises(RetryableError, match="more than 6 days ago"):
        commit_batch_write(query.sink(), [message])


def test_gc_drops_staging_tables_of_commits(
    query: PostgresQuery, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the manifest names them: their rows are in the table."""
    monkeypatch.setattr(transaction, "DROP_TIMEOUT_S", 0.1)
    with open_store(store_url) as store:
        messages = query.write(query.plan(store, query.batch(0)), [ids(1)])
        with psycopg.connect(query.url.replace("+psycopg", "")) as dump:
            dump.execute(f"LOCK TABLE {query.staged()[0]} IN ACCESS SHARE MODE")
            query.commit(store, messages)
    query.age_staged()
    penstock(store_url, "gc", "--delete")

    assert query.staged() == []
    assert query.ids() == [1]


@pytest.mark.parametrize("comment", ["", "penstock, staged at noon by q1", "of mine"])
def test_gc_leaves_tables_of_others(query: PostgresQuery, store_url: str, comment: str) -> None:
    with open_store(store_url) as store:
        query.write(query.plan(store, query.batch(0)), [ids(1)], run_id="lost")
        query.run(store, query.batch(0), ids(1), run_id="r2")
    query.sql(f"COMMENT ON TABLE {query.staged()[0]} IS '{comment}'")
    penstock(store_url, "gc", "--delete")

    assert len(query.staged()) == 1


def test_gc_leaves_young_staging_tables(query: PostgresQuery, store_url: str) -> None:
    with open_store(store_url) as store:
        query.write(query.plan(store, query.batch(0)), [ids(1)], run_id="lost")
        query.run(store, query.batch(0), ids(1), run_id="r2")
        record = store.record(query.batch(0).stream, 0)
    penstock(store_url, "gc", "--delete")

    assert record is not None
    assert record.state is ManifestState.COMMITTED
    assert len(query.staged()) == 1


class ServerThatAsksForPasswords:
    """Asks for the password in clear text, as a Postgres server does, and keeps what it gets."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.got = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            with client:
                request = client.recv(4096)
                while request and struct.unpack(">i", request[4:8])[0] in (80877103, 80877104):  # TLS, GSS
                    client.sendall(b"N")
                    request = client.recv(4096)
                client.sendall(struct.pack(">cii", b"R", 8, 3))
                self.got += client.recv(4096)


@pytest.mark.parametrize("is_named", [False, True])
def test_a_server_that_the_store_names_gets_a_password_only_if_the_operator_names_it_too(
    store_url: str, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    """Anybody who can write to the store could have put it there."""
    server = ServerThatAsksForPasswords()
    for name, value in {"PGUSER": "writer", "PGPASSWORD": "hunter2", "PGCONNECT_TIMEOUT": "5"}.items():
        monkeypatch.setenv(name, value)
    if is_named:
        monkeypatch.setenv("PGHOST", "127.0.0.1")
        monkeypatch.setenv("PGPORT", str(server.port))
    with open_store(store_url) as store:
        uri = f"postgresql://127.0.0.1:{server.port}/lake/public/events"
        store.register_stream(StreamKey("q1", uri), "postgres", "events")

    ended = Ended("status", "--table", "--store", store_url)
    assert ended.code != 0
    assert (b"hunter2" in server.got) is is_named
    assert is_named or f"PGHOST=127.0.0.1 PGPORT={server.port}" in " ".join(ended.err.split())


@pytest.mark.parametrize("is_named", [False, True])
def test_a_server_that_the_store_names_gets_the_password_of_a_stream_only_if_its_url_names_it(
    store_url: str, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    """The name of the stream is from the store, too."""
    server = ServerThatAsksForPasswords()
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "5")
    port = server.port if is_named else 5432
    url = f"postgresql://writer:hunter2@127.0.0.1:{port}/lake"
    monkeypatch.setenv("PENSTOCK_STREAMS", json.dumps({"events": {"url": url}}))
    with open_store(store_url) as store:
        uri = f"postgresql://127.0.0.1:{server.port}/lake/public/events"
        store.register_stream(StreamKey("q1", uri), "postgres", "events")

    ended = Ended("status", "--table", "--store", store_url)
    assert ended.code != 0
    assert (b"hunter2" in server.got) is is_named
    assert is_named or "somebody has changed the store" in " ".join(ended.err.split())
    assert "hunter2" not in ended.err
