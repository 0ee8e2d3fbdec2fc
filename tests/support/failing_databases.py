"""Servers of databases that fail while queries write, for every destination that writes into them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psycopg
import pymysql
import pytest
from servers.mysql import PASSWORD, MySQL, MySqlProcess
from servers.postgres import Postgres
from tests.support import mysql, postgres
from tests.support.backlogs import wait_until

from penstock.committers.database import transaction
from penstock.committers.mysql import connection as mysql_connection
from penstock.datasource.sql.stored import DESTINATION as SQL
from penstock.writers.database import staging_writer

Tls = Literal["disabled", "required", "verified"]
Held = Literal["row", "table"]
"""What another session has locked: the row of the query in the fence table, or the table."""


@dataclass(frozen=True)
class TableBySql(postgres.PostgresTable):
    """A table of Postgres that `penstock.sql` writes."""

    destination = SQL


class FailingDatabase(ABC):
    """A server, and what befalls it.

    Args:
        server: of its own, because all that use it are affected
        kind: the destination, or how it commits
    """

    def __init__(self, server: Any, kind: str) -> None:
        self.server, self.kind = server, kind
        self.is_prepared = kind.endswith("-prepared")
        self.options = {"commit": "prepared"} if self.is_prepared else {}

    @abstractmethod
    def new_query(self) -> Any:
        """A query into the table `events` of an empty schema, by a user whom a standby refuses."""

    @abstractmethod
    def with_wrong_password(self, query: Any) -> AbstractContextManager[Any]:
        """In the block the server asks the yielded query for a password, and it has the wrong one."""

    @abstractmethod
    def with_tls(self, query: Any, mode: Tls, authority: Path | None = None) -> Any:
        """The same query, with TLS. Only with an authority the server has a certificate."""

    @abstractmethod
    def requiring_tls(self, query: Any) -> AbstractContextManager[None]:
        """In the block the server refuses connections without TLS."""

    @abstractmethod
    def cut(self) -> None:
        """Let the server end all other connections."""

    @abstractmethod
    def impatient(self, query: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
        """The same query, which waits one second for a lock."""

    @abstractmethod
    def hurried(self, query: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
        """The same query, whose statements may take one second."""

    @abstractmethod
    def holding(self, query: Any, held: Held) -> AbstractContextManager[None]:
        """In the block another session has a lock."""

    @abstractmethod
    def slow(self, query: Any) -> AbstractContextManager[None]:
        """In the block the table takes seconds for a row."""

    @abstractmethod
    def read_only(self) -> AbstractContextManager[None]:
        """In the block the server refuses to write, as a standby does."""

    @abstractmethod
    def crowded(self) -> AbstractContextManager[None]:
        """In the block the server accepts no more connections."""


class FailingPostgres(FailingDatabase):
    """Postgres, written by `penstock.postgres`, also with `commit=prepared`, or by `penstock.sql`.

    Args:
        tls_port: of a proxy that speaks TLS
    """

    server: Postgres

    def __init__(self, server: Postgres, kind: str, tls_port: int) -> None:
        super().__init__(server, kind)
        self._tls_port = tls_port

    def new_query(self) -> postgres.PostgresQuery:
        table = TableBySql if self.kind == "sql" else postgres.PostgresTable
        return postgres.PostgresQuery(table(self.server.new_url()), "q1", self.options)

    @contextmanager
    def with_wrong_password(self, query: postgres.PostgresQuery) -> Iterator[postgres.PostgresQuery]:
        user = f"u_{query.schema}"
        with postgres.users_with_passwords(self._url, {user: PASSWORD}):
            yield self._at(query, query.url.replace("//postgres", f"//{user}:wrong-{PASSWORD}", 1))

    def with_tls(
        self, query: postgres.PostgresQuery, mode: Tls, authority: Path | None = None
    ) -> postgres.PostgresQuery:
        named = {"disabled": "disable", "required": "require", "verified": "verify-full"}[mode]
        url = f"{query.url}&sslmode={named}"
        if authority is not None:
            url = f"{url}&sslrootcert={authority}".replace(f":{self.server.port}/", f":{self._tls_port}/")
        return self._at(query, url)

    @contextmanager
    def requiring_tls(self, query: postgres.PostgresQuery) -> Iterator[None]:
        with postgres.first_rules(self._url, "host all all 127.0.0.1/32 reject\n", self._is_refused):
            yield
        wait_until(lambda: not self._is_refused())

    def _is_refused(self) -> bool:
        with suppress(psycopg.OperationalError), psycopg.connect(self._url):
            return False
        return True

    def cut(self) -> None:
        own = "pid <> pg_backend_pid() AND backend_type = 'client backend'"
        self._execute(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {own}")

    def impatient(self, query: postgres.PostgresQuery, monkeypatch: pytest.MonkeyPatch) -> Any:
        return self._limited(query, "lock_timeout")

    def hurried(self, query: postgres.PostgresQuery, monkeypatch: pytest.MonkeyPatch) -> Any:
        return self._limited(query, "statement_timeout")

    @contextmanager
    def holding(self, query: postgres.PostgresQuery, held: Held) -> Iterator[None]:
        row, table = "SELECT * FROM penstock_fence FOR UPDATE", "LOCK TABLE events IN ACCESS EXCLUSIVE MODE"
        with psycopg.connect(query.url.replace("+psycopg", "")) as other:
            other.execute(row if held == "row" else table)
            yield
            other.rollback()

    @contextmanager
    def slow(self, query: postgres.PostgresQuery) -> Iterator[None]:
        query.sql(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN PERFORM pg_sleep(5); RETURN NEW; END'; "
            "CREATE TRIGGER slow BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION slow()"
        )
        yield
        query.sql("DROP TRIGGER slow ON events")

    @contextmanager
    def read_only(self) -> Iterator[None]:
        self._execute("ALTER DATABASE postgres SET default_transaction_read_only = on")
        yield
        self._execute(
            "SET default_transaction_read_only = off",
            "ALTER DATABASE postgres RESET default_transaction_read_only",
        )

    @contextmanager
    def crowded(self) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                while True:
                    stack.enter_context(psycopg.connect(self._url))
            except psycopg.OperationalError:
                yield

    @property
    def _url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.server.port}/postgres"

    def _execute(self, *statements: str) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def _limited(self, query: postgres.PostgresQuery, limit: str) -> postgres.PostgresQuery:
        return self._at(query, f"{query.url}%20-c{limit}%3D1s")

    def _at(self, query: postgres.PostgresQuery, url: str) -> postgres.PostgresQuery:
        assert url != query.url
        return query.with_options(url=url)


class FailingMySql(FailingDatabase):
    """MariaDB or MySQL, written by `penstock.mysql`, also with `commit=prepared`."""

    server: MySqlProcess

    @property
    def _is_mysql(self) -> bool:
        return isinstance(self.server, MySQL)

    def new_query(self) -> mysql.MySqlQuery:
        url = self.server.new_url()
        query = mysql.query_into(url, **self.options)
        user = f"u{query.table.schema[:20]}"
        rights = "CREATE, DROP, ALTER, SELECT, INSERT, UPDATE, DELETE, LOCK TABLES"
        ends = [f"GRANT XA_RECOVER_ADMIN ON *.* TO {user}@'127.0.0.1'"] if self._is_mysql else []
        self._execute(
            f"CREATE USER {user}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'",
            f"GRANT {rights} ON {query.table.schema}.* TO {user}@'127.0.0.1'",
            *ends,
        )
        return query.with_options(url=url.replace("//penstock:", f"//{user}:", 1))

    @contextmanager
    def with_wrong_password(self, query: mysql.MySqlQuery) -> Iterator[mysql.MySqlQuery]:
        url = query.options["url"]
        yield query.with_options(url=url.replace(f":{PASSWORD}@", f":wrong-{PASSWORD}@", 1))

    def with_tls(self, query: mysql.MySqlQuery, mode: Tls, authority: Path | None = None) -> mysql.MySqlQuery:
        named = "verify_identity" if mode == "verified" else mode
        of_authority = "" if authority is None else f"&ssl_ca={authority}"
        return query.with_options(url=f"{query.options['url']}?ssl_mode={named}{of_authority}")

    @contextmanager
    def requiring_tls(self, query: mysql.MySqlQuery) -> Iterator[None]:
        self._execute("SET GLOBAL require_secure_transport = 1")
        yield
        with self.server.connect(ssl={"check_hostname": False}) as admin, admin.cursor() as cursor:
            cursor.execute("SET GLOBAL require_secure_transport = 0")

    def cut(self) -> None:
        with self.server.connect() as admin, admin.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE user LIKE 'ut%'")
            for (number,) in cursor.fetchall():
                cursor.execute(f"KILL {number}")

    def impatient(self, query: mysql.MySqlQuery, monkeypatch: pytest.MonkeyPatch) -> Any:
        for name in ("innodb_lock_wait_timeout", "lock_wait_timeout"):
            monkeypatch.setitem(mysql_connection._SESSION, name, "1")
        return query

    def hurried(self, query: mysql.MySqlQuery, monkeypatch: pytest.MonkeyPatch) -> Any:
        for module in (transaction, staging_writer):
            monkeypatch.setattr(module, "COMMIT_TIMEOUT_S", 1)
        if self._is_mysql:  # it has no limit for statements that write: the client ends them
            monkeypatch.setattr(mysql_connection, "ANSWER_TIMEOUT_S", 1)
        return query

    @contextmanager
    def holding(self, query: mysql.MySqlQuery, held: Held) -> Iterator[None]:
        with self.server.connect(query.table.schema) as other, other.cursor() as cursor:
            cursor.execute("SET autocommit = 0")
            row, table = "SELECT * FROM penstock_fence FOR UPDATE", "LOCK TABLES events WRITE"
            cursor.execute(row if held == "row" else table)
            yield

    @contextmanager
    def slow(self, query: mysql.MySqlQuery) -> Iterator[None]:
        query.sql("CREATE TRIGGER slow BEFORE INSERT ON events FOR EACH ROW SET @slept = SLEEP(5)")
        yield
        query.sql("DROP TRIGGER slow")

    @contextmanager
    def read_only(self) -> Iterator[None]:
        self._execute("SET GLOBAL read_only = 1")
        yield
        self._execute("SET GLOBAL read_only = 0")

    @contextmanager
    def crowded(self) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                while True:
                    stack.enter_context(self.server.connect())
            except pymysql.MySQLError:
                yield

    def _execute(self, *statements: str) -> None:
        with self.server.connect() as admin, admin.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
