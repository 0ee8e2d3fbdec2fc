"""Options of `penstock.mysql`, and who gets the password: what is wrong is said before any row moves."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.committers.errors import ConfigurationError
from penstock.committers.mysql.address import MySqlAddress, settings_of
from penstock.datasource.mysql.credentials import advice_for, url_for
from penstock.datasource.mysql.options import MySqlOptions
from penstock.datasource.mysql.sink import MySqlSink
from penstock.datasource.stored.table_access import TableAccess
from penstock.testing.conformance.query import NO_ACCESS

GIVEN = {"url": "mysql://me:geheim@db:3307/lake", "dbtable": "events"}
ADDRESS = MySqlAddress("db", "3307", "lake", "events")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": ""}, "url: "),
        ({"url": "jdbc:mysql://me:geheim@db/lake"}, "url: must contain host and database"),
        ({"url": "mysql://me:geheim@db:port/lake"}, "url: must contain host and database"),
        ({"url": "mysql://me:geheim@db"}, "url: must contain host and database"),
        ({"url": "mysql://me:geheim@db/lake?ssl=1"}, "unknown parameter ssl"),
        ({"url": "mysql://me:geheim@db/lake?ssl_mode=geheimer"}, "unknown ssl_mode"),
        ({"dbtable": "a.b.c"}, "dbtable='a.b.c'"),
        ({"dbtable": "x" * 65}, "longer than 64 characters"),
        ({"stagingSchema": "a.b"}, "stagingSchema='a.b'"),
        ({"writeMode": "upsert"}, "keys is missing"),
        ({"writeMode": "upsert", "keys": "id", "updateColumns": "given"}, "updateColumns"),
        ({"schemaEvolution": "evolve"}, "schemaEvolution"),
        ({"targetFileSize": "1mb"}, "targetFileSize is an option of lake tables"),
        ({"dbtabel": "x"}, "Did you mean dbtable"),
    ],
)
def test_what_is_wrong_is_named_and_shows_no_password(options: Mapping[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        MySqlOptions.parse({**GIVEN, **options})

    assert said in str(refused.value)
    assert "geheim" not in str(refused.value)


def test_url_and_table_must_be_given() -> None:
    with pytest.raises(ConfigurationError, match=r"url is missing(.|\n)*dbtable is missing"):
        MySqlOptions.parse({})


@pytest.mark.parametrize(
    ("table", "uri"),
    [
        ("events", "mysql://db:3307/lake/events"),
        ("Sales.Events", "mysql://db:3307/Sales/Events"),
        ("`my-data`.`a ``b`", "mysql://db:3307/my-data/a%20%60b"),
    ],
)
def test_the_address_has_no_user_and_is_read_back(table: str, uri: str) -> None:
    found = MySqlSink(MySqlOptions.parse({**GIVEN, "dbtable": table})).table_uri
    assert found == uri
    assert MySqlAddress.parse(found).uri == uri


@pytest.mark.parametrize("uri", ["mysql://db/lake/events", "postgresql://db:1/a/b/c", "mysql://db:1/a", ""])
def test_other_addresses_are_refused(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="is not the address of a MySQL table"):
        MySqlAddress.parse(uri)


def test_a_password_of_the_environment_goes_where_it_names_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"MYSQL_HOST": "db", "MYSQL_TCP_PORT": "3307", "MYSQL_USER": "me"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MYSQL_PWD", "ge:heim@")
    given = settings_of(url_for(ADDRESS, NO_ACCESS))
    assert given == {
        "host": "db", "port": "3307", "database": "lake", "user": "me", "password": "ge:heim@"
    }  # fmt: skip

    monkeypatch.setenv("MYSQL_HOST", "other")
    with pytest.raises(ConfigurationError, match=r"Nothing was sent(.|\n)*MYSQL_HOST=db") as refused:
        url_for(ADDRESS, NO_ACCESS)
    assert "heim" not in str(refused.value)


def test_a_url_of_another_server_is_refused() -> None:
    access = TableAccess({}, {}, url="mysql://me:geheim@other/lake")
    with pytest.raises(ConfigurationError, match="is for another database: host 'other'") as refused:
        url_for(ADDRESS, access)
    assert "geheim" not in str(refused.value)
    assert "docs/destinations/mysql.md" in advice_for(ADDRESS, access)
