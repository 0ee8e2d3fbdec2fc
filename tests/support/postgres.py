"""A Postgres table that a query writes, as others see it, and its COMMIT that goes wrong. All is real."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import psycopg
import sqlalchemy as sa
from tests.support.backlogs import wait_until

from penstock.datasource.destinations import DestinationType
from penstock.datasource.postgres.stored import DESTINATION
from penstock.testing.conformance.query import Query


@dataclass(frozen=True)
class PostgresTable:
    """The table `events` in a schema of its own.

    Args:
        url: of a database with an empty schema, which it names in its `options`
    """

    url: str
    destination: ClassVar[DestinationType] = DESTINATION

    @property
    def schema(self) -> str:
        (options,) = parse_qs(urlsplit(self.url).query)["options"]
        return options.rpartition("=")[2]

    @property
    def options(self) -> dict[str, str]:
        return {"url": self.url, "dbtable": f"{self.schema}.events"}

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run by another user of the database. Unqualified names are in the table's schema."""
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            cursor = connection.execute(statement, values or None)
            return list(cursor.fetchall()) if cursor.description else []

    def ids(self) -> list[int]:
        return [row[0] for row in self.sql("SELECT id FROM events ORDER BY id")]

    def staged(self) -> list[str]:
        """Names of the staging tables."""
        names = self.sql(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename ~ '^penstock_[0-9a-f]{12}_'",
            self.schema,
        )
        return [name for (name,) in names]


@dataclass(frozen=True)
class PostgresQuery(Query):
    """One query that writes rows into such a table."""

    @property
    def table(self) -> PostgresTable:
        assert isinstance(self.harness, PostgresTable)
        return self.harness

    @property
    def url(self) -> str:
        return self.table.url

    @property
    def schema(self) -> str:
        return self.table.schema

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.table.sql(statement, *values)

    def ids(self) -> list[int]:
        return self.table.ids()

    def staged(self) -> list[str]:
        return self.table.staged()

    def age_staged(self) -> None:
        """Let all staging tables be old."""
        for name in self.staged():
            ((comment,),) = self.sql("SELECT obj_description(%s::regclass)", name)
            old = re.sub(r"at \S+", "at 2020-01-01T00:00:00+00:00", comment)
            self.sql(f"COMMENT ON TABLE {name} IS '{old}'")


def query_into(url: str, query_id: str = "q1", **options: str) -> PostgresQuery:
    return PostgresQuery(PostgresTable(url), query_id, options)


@contextmanager
def users_with_passwords(server_url: str, passwords: dict[str, str]) -> Iterator[None]:
    """In the block the server has these users, and asks them for their passwords. All others it trusts."""
    with psycopg.connect(server_url.replace("+psycopg", ""), autocommit=True) as admin:
        for user, password in passwords.items():
            admin.execute(f"CREATE ROLE {user} LOGIN PASSWORD '{password}'")
    rules = [f"{kind} scram-sha-256\n" for user in passwords for kind in _sources(user)]
    with first_rules(
        server_url, "".join(rules), lambda: all(_is_asked(server_url, user) for user in passwords)
    ):
        yield


@contextmanager
def first_rules(server_url: str, rules: str, are_used: Callable[[], bool]) -> Iterator[None]:
    """In the block these rules precede those in the server's file `pg_hba.conf`."""
    with psycopg.connect(server_url.replace("+psycopg", ""), autocommit=True) as admin:
        ((hba_file,),) = admin.execute("SHOW hba_file").fetchall()
        before = Path(hba_file).read_text()
        try:
            Path(hba_file).write_text(rules + before)
            admin.execute("SELECT pg_reload_conf()")
            wait_until(are_used)
            yield
        finally:
            Path(hba_file).write_text(before)
            admin.execute("SELECT pg_reload_conf()")


def _sources(user: str) -> tuple[str, str]:
    return f"local all {user}", f"host all {user} 127.0.0.1/32"


def _is_asked(server_url: str, user: str) -> bool:
    try:
        with psycopg.connect(url_of(server_url, user)):
            return False
    except psycopg.OperationalError as error:
        return "password" in str(error)


def url_of(url: str, user: str, password: str | None = None) -> str:
    """The URL, for libpq, with another user."""
    parsed = sa.make_url(url).set(drivername="postgresql", username=user, password=password)
    return parsed.render_as_string(hide_password=False)
