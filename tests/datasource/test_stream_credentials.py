"""Credentials for single streams, in the options file: one process serves tables of several users."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.support.backlogs import wait_until
from tests.support.cli import Ended
from tests.support.lakes import ids
from tests.support.postgres import PostgresQuery, query_into, url_of, users_with_passwords

import penstock
from penstock.cli.app import COMMANDS
from penstock.cli.commands import dead_letters
from penstock.committers.contract import StreamKey
from penstock.committers.errors import AccessRefusedError, ConfigurationError
from penstock.committers.store.sql import SqlManifestStore
from penstock.committers.store.status import StreamStatus
from penstock.datasource.destinations import access_of, destination_type, stored_table
from penstock.datasource.stored.stream_access import about_unknown_names
from penstock.datasource.stored.table_access import StreamAccess, TableAccess
from penstock.delivery.stream_settings import access_to_letters

QUERY_IDS = {
    "flights": "8d9a1c2b-5a0f-4f4e-9d3e-000000000001",
    "orders": "0e7fd3aa-7a51-4f0e-8b7e-000000000002",
}

SECRET = "hunter2"


class Tables:
    """Two tables on one server, of two users with different passwords, each with a decoupled stream of one
    batch.
    """

    def __init__(self, new_url: Callable[[], str], store: SqlManifestStore, folder: Path) -> None:
        self.store = store
        self.store_url = f"sqlite:///{folder}/store.db"
        self.folder = folder
        self._unique = uuid.uuid4().hex[:8]
        self.passwords = {f"{name}_{self._unique}": f"{name}-secret" for name in QUERY_IDS}
        self._schemas = {name: new_url() for name in QUERY_IDS}
        self.server_url = self._schemas["flights"]

    def fill(self) -> None:
        for name, query in self.queries().items():
            user = f"{name}_{self._unique}"
            admin = query_into(self._schemas[name])
            admin.sql(f"ALTER SCHEMA {admin.schema} OWNER TO {user}")
            query.run(self.store, query.batch(0), ids(1, 2))

    def queries(self) -> dict[str, PostgresQuery]:
        return {
            name: query_into(
                self.url(name), QUERY_IDS[name], queryName=name, delivery="decoupled", deliverAfterBatches="1"
            )
            for name in QUERY_IDS
        }

    def url(self, name: str) -> str:
        """The url of a query, with its user and password."""
        user = f"{name}_{self._unique}"
        return url_of(self._schemas[name], user, self.passwords[user])

    def address(self, name: str) -> str:
        return self.queries()[name].stream.table_uri

    def rows(self, name: str) -> list[int]:
        return query_into(self._schemas[name]).ids() if self.is_there(name) else []

    def is_there(self, name: str) -> bool:
        return query_into(self._schemas[name]).sql("SELECT to_regclass('events')") != [(None,)]

    def options_file(self, streams: object) -> str:
        path = self.folder / "options.json"
        path.touch(0o600)
        path.write_text(json.dumps({"store": self.store_url, "streams": streams}))
        return str(path)


@pytest.fixture
def tables(
    new_postgres_url: Callable[[], str],
    store: SqlManifestStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Tables]:
    for name in ("PGPASSWORD", "PGHOST", "PGPORT", "PGUSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGPASSFILE", "/nowhere")
    made = Tables(new_postgres_url, store, tmp_path)
    with users_with_passwords(made.server_url, made.passwords):
        made.fill()
        yield made


def test_one_delivery_process_serves_tables_of_two_users(tables: Tables) -> None:
    by_name = {name: {"url": tables.url(name)} for name in QUERY_IDS}
    ended = Ended("deliver", "--once", "--options-file", tables.options_file(by_name))

    assert ended.code == 0, ended.err
    assert [tables.rows(name) for name in QUERY_IDS] == [[1, 2], [1, 2]]


@pytest.mark.parametrize(
    "command",
    [
        "show flights 0",
        "skip flights 0 --reason x --yes --discard-rows",
        "deliver flights --once",
        "status --table",
    ],
)
def test_without_a_password_the_advice_is_for_the_process_that_needs_it(
    tables: Tables, command: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A command and a delivery process cannot change the url of the query."""
    ended = Ended(*command.split(), "--options-file", tables.options_file({}))

    message = " ".join(f"{ended.err} {ended.out} {caplog.text}".split())
    assert ended.code != 0
    assert "Fix the url" not in message
    for way in ("--options-file", f'{{"streams": {{"{tables.address("flights")}"', "PGPASSWORD", "~/.pgpass"):
        assert way in message


def test_with_a_wrong_password_the_advice_is_about_the_entry_that_has_it(tables: Tables) -> None:
    """An entry for the address, as in the advice without a password, would not override it."""
    entries = {"flights": {"url": tables.url("flights").replace("flights-secret", "wrong")}}
    ended = Ended("show", "flights", "0", "--options-file", tables.options_file(entries))

    message = " ".join(ended.err.split())
    assert "password authentication failed" in message
    assert "those in the `url` of the entry for this stream in `streams`" in message
    assert tables.address("flights") + '": {' not in message


# All commands, all names -----------------------------------------------------------------------------


OPEN_A_TABLE = {
    "status --table": 0,
    "show flights 0 --rows": 0,
    "gc": 0,
    "dead-letters list flights": 0,
    "dead-letters show flights": 0,
    "deliver --once flights": 0,
    "recover flights": 0,
    "recover flights --accept-table --yes": 0,
}


def test_each_command_that_opens_a_table_uses_the_credentials_of_the_stream(tables: Tables) -> None:
    file = tables.options_file({name: {"url": tables.url(name)} for name in QUERY_IDS})
    ended = {command: Ended(*command.split(), "--options-file", file) for command in OPEN_A_TABLE}

    assert {command: one.code for command, one in ended.items()} == OPEN_A_TABLE, [
        one.err for one in ended.values()
    ]
    assert (tables.rows("flights"), tables.rows("orders")) == ([1, 2], [])
    skip = ["skip", "orders", "0", "--reason", "x", "--yes", "--save-to", f"{tables.folder}/saved"]
    assert Ended(*skip, "--options-file", file).code == 0
    assert DeltaTable(f"{tables.folder}/saved").count() == 2
    assert all("-secret" not in one.out + one.err for one in ended.values())


def test_no_command_takes_options_for_tables_without_those_of_single_streams() -> None:
    for command in (*[one for some in COMMANDS.values() for one in some], *dead_letters.COMMANDS.values()):
        assert not {"storage", "catalog"} & command.__annotations__.keys(), command


@pytest.mark.parametrize(
    "name_of",
    [
        lambda stream: stream.query_name,
        lambda stream: stream.key.query_id,
        lambda stream: stream.key.query_id[:8],
        lambda stream: stream.key.table_uri,
        lambda stream: str(stream.key),
        lambda stream: "postgresql://db:5432/lake",
        lambda stream: "postgresql://db:5432/",
    ],
    ids=["name", "id", "short id", "table", "id and table", "database", "server"],
)
def test_an_entry_names_a_stream_as_commands_do_or_begins_its_address(
    stream: StreamStatus, name_of: Callable[[StreamStatus], str]
) -> None:
    assert access(streams={name_of(stream): {"url": "postgresql://u:p@db/lake"}}, of=stream).url is not None


@pytest.mark.parametrize(
    "name", ["event", "8d9a", "postgresql://db:543", "postgresql://db:5432/la", "public/events"]
)
def test_a_part_of_a_name_is_none(stream: StreamStatus, name: str, store: SqlManifestStore) -> None:
    given = {name: {"url": "postgresql://u:p@db/lake"}}
    assert access(streams=given, of=stream).url is None
    warning = about_unknown_names(access(streams=given), store.streams(), store.name)
    assert repr(name) in warning
    assert "u:p" not in warning


def test_start_delivery_takes_the_credentials_of_streams(tables: Tables) -> None:
    streams = {name: {"url": tables.url(name)} for name in QUERY_IDS}
    with penstock.start_delivery(tables.store_url, streams=streams, maintenance=False):
        wait_until(lambda: all(tables.rows(name) == [1, 2] for name in QUERY_IDS))


def test_a_separate_delivery_process_gets_all_that_start_delivery_got() -> None:
    given = access(
        {"AWS_REGION": "x"},
        {"uri": "y"},
        {"a": {"url": "z"}, "b": {"storage": {"k": "v"}, "catalog": {"C": "d"}}},
    )
    assert TableAccess.of_json(json.loads(json.dumps(given.to_json()))) == given


def test_names_that_no_stream_has_are_reported_by_commands_and_deliveries(
    tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    file = tables.options_file(
        {"flihgts": {"url": tables.url("flights")}, "orders": {"url": tables.url("orders")}}
    )
    shown = " ".join(Ended("status", "--options-file", file).err.split())
    Ended("deliver", "orders", "--once", "--options-file", file)

    for said in (shown, " ".join(caplog.text.split())):
        assert "no stream that these entries of `streams` name: 'flihgts'." in said
        assert "-secret" not in said


# Precedence and protection ---------------------------------------------------------------------------


@pytest.fixture
def stream(store: SqlManifestStore) -> StreamStatus:
    key = StreamKey(QUERY_IDS["flights"], "postgresql://db:5432/lake/public/events")
    return registered(store, key, "postgres")


def registered(store: SqlManifestStore, key: StreamKey, kind: str) -> StreamStatus:
    store.register_stream(key, kind, "events")
    (stream,) = [one for one in store.streams() if one.key == key]
    return stream


def access(
    storage: dict[str, str] | None = None,
    catalog: dict[str, str] | None = None,
    streams: object = None,
    of: StreamStatus | None = None,
) -> TableAccess:
    """The access of a process, or `of` one stream."""
    given = TableAccess(storage or {}, catalog or {}, streams=StreamAccess.parse_all(streams or {}, "a test"))
    return given if of is None else access_of(of, given)


def test_options_of_a_stream_override_those_of_its_table_its_server_and_of_all(stream: StreamStatus) -> None:
    """Whatever the order in the file is."""
    names = ["events", stream.key.table_uri, "postgresql://db:5432/lake", "postgresql://db:5432"]
    streams = {
        name: {"storage": {f"k{n}": name for n in range(number, 4)}} for number, name in enumerate(names)
    }
    found = access({f"K{n}": "all" for n in range(5)}, {"uri": "all"}, streams, stream)

    assert [found.storage[f"K{n}"] for n in range(5)] == ["events", "events", "events", "events", "all"]
    assert found.catalog == {"uri": "all"}
    del streams["events"]
    found = access({}, {}, streams, stream)
    assert [found.storage.get(f"K{n}") for n in range(4)] == [None, names[1], names[1], names[1]]


def test_credentials_for_all_streams_are_not_sent_to_the_url_of_one(store: SqlManifestStore) -> None:
    """These are for the url that was given with them."""
    stored = {"url": "https://b.example/rows", "delivery": "decoupled"}
    stream = registered(store, StreamKey("q", stored["url"]), "http")
    general = {"URL": "https://a.example", "BEARERTOKEN": "of-a", "HEADER.X": "of-a", "AWS_REGION": "x"}
    entry = {"url": "https://b.example", "storage": {"header.Y": "of-b"}}
    sink: Any = destination_type(stream.key, "http").sink(
        stream.key, stored, access(general, {}, {"events": entry}, stream)
    )
    assert sink.options.bearer_token is None
    assert dict(sink.options.headers) == {"y": "of-b"}
    assert sink.options.storage_options == {"AWS_REGION": "x"}


def test_the_catalog_of_a_ducklake_gets_the_url_of_its_stream(store: SqlManifestStore) -> None:
    pytest.importorskip("duckdb")
    stream = registered(store, StreamKey("q", "ducklake+postgresql://db:5432/lake/main/events"), "ducklake")
    url = "postgresql://u:p@db/lake"
    stored: Any = stored_table(stream, access(streams={"events": {"url": url}}))
    assert stored.address.catalog.settings["password"] == "p"
    assert stored.address.uri == stream.key.table_uri
    with pytest.raises(ConfigurationError, match="for another database"):
        stored_table(stream, access(streams={"events": {"url": "postgresql://u:p@db/other"}}))


def test_a_ducklake_whose_database_wants_a_password_says_where_to_give_it() -> None:
    duckdb = pytest.importorskip("duckdb")
    from penstock.committers.ducklake.address import DuckLakeAddress
    from penstock.committers.ducklake.connection import LakeServer

    uri = "ducklake+postgresql://db:5432/lake/main/events"
    error = duckdb.IOException("IO Error: Unable to connect to Postgres: fe_sendauth: no password supplied")
    said = LakeServer(DuckLakeAddress.parse(uri), {}).failed(error, "Nothing was changed")
    assert isinstance(said, AccessRefusedError)
    assert f'{{"streams": {{"{uri}": {{"url": "postgresql://..."}}}}}}' in str(said)


def test_the_dead_letter_table_gets_the_storage_of_the_stream_and_none_of_its_credentials(
    store: SqlManifestStore,
) -> None:
    """Those of its own are in an entry of its address."""
    stream = registered(store, StreamKey("q", "https://b.example/rows"), "http")
    letters = registered(store, StreamKey("l", "s3://refused/rows"), "delta")
    of_stream = {"bearerToken": "x", "AWS_REGION": "a", "AWS_PROFILE": "b"}
    entries = {
        "q": {"url": "https://b.example", "storage": of_stream},
        "s3://refused": {"storage": {"AWS_REGION": "c"}},
    }
    found = access_of(letters, access_to_letters(letters, stream, access(streams=entries)))

    assert (found.storage, found.url) == ({"AWS_REGION": "c", "AWS_PROFILE": "b"}, None)


@pytest.mark.parametrize(
    ("streams", "said"),
    [
        (SECRET, "must be an object such as"),
        (
            {"flights": SECRET},
            "'flights' of `streams` in the options file /.*options.json must be an object with url",
        ),
        ({"flights": {"password": SECRET}}, "User and password of Postgres are parts of url"),
        ({"flights": {"url": [SECRET]}}, "'flights' .* has a value of another type"),
        ({"flights": {"storage": {"KEY": [SECRET]}}}, "'flights' .* has a value of another type"),
        (
            {"flights": {"url": SECRET, "storage": {"url": SECRET}}},
            "has a url both in itself and in its storage",
        ),
        ({f"postgresql://u:{SECRET}@db/lake": {}}, "is empty, or contains a password"),
        ({" ": {"url": SECRET}}, "is empty, or contains a password"),
        ({"events": {"url": SECRET}}, "The url in `streams` for .* must contain host and database"),
        (
            {"events": {"url": f"postgresql://u:{SECRET}@other/lake"}},
            "another database: host 'other', port '5432'",
        ),
    ],
)
def test_a_wrong_entry_is_reported_by_its_name_and_shows_no_value(
    stream: StreamStatus, tmp_path: Path, streams: object, said: str
) -> None:
    file = tmp_path / "options.json"
    file.touch(0o600)
    file.write_text(json.dumps({"store": f"sqlite:///{tmp_path}/store.db", "streams": streams}))
    ended = Ended("status", "--table", "--options-file", str(file))

    assert ended.code == 2
    assert re.search(said, " ".join(ended.err.split()))
    assert SECRET not in ended.out + ended.err
