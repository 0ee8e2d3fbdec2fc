"""A MySQL table that a query writes, as others see it, and its COMMIT that goes wrong. All is real."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

import pymysql
import pytest
from servers.mysql import MySqlProcess

from penstock.committers.mysql.address import settings_of
from penstock.datasource.destinations import DestinationType
from penstock.datasource.mysql.stored import DESTINATION
from penstock.testing.conformance.query import Query

on_mariadb = pytest.mark.parametrize("mysql_server", ["mariadb"], indirect=True)
on_both = pytest.mark.parametrize("mysql_server", ["mariadb", "oracle_mysql"], indirect=True)
"""Also where campaigns do not run."""

_STAGED = re.compile("penstock_[0-9a-f]{12}_.*")


@dataclass(frozen=True)
class MySqlTable:
    """The table `events` in a database of its own.

    Args:
        url: of an empty database
    """

    url: str
    destination: ClassVar[DestinationType] = DESTINATION

    @property
    def server_settings(self) -> dict[str, str]:
        return settings_of(self.url)

    @property
    def schema(self) -> str:
        return self.server_settings["database"]

    @property
    def options(self) -> dict[str, str]:
        return {"url": self.url, "dbtable": "events"}

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run by another user of the database, who sees times in UTC."""
        given = settings_of(self.url)
        with pymysql.connect(
            host=given["host"], port=int(given["port"]), user=given["user"], password=given["password"],
            database=given["database"], charset="utf8mb4", autocommit=True,
            init_command="SET time_zone = '+00:00'",
        ) as connection, connection.cursor() as cursor:  # fmt: skip
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def tables(self) -> list[str]:
        return [name for (name,) in self.sql("SHOW TABLES")]

    def ids(self) -> list[int]:
        return [row[0] for row in self.sql("SELECT id FROM events ORDER BY id")]

    def staged(self) -> list[str]:
        """Names of the staging tables."""
        return [name for name in self.tables() if _STAGED.fullmatch(name)]


@dataclass(frozen=True)
class MySqlQuery(Query):
    """One query that writes rows into such a table."""

    @property
    def table(self) -> MySqlTable:
        assert isinstance(self.harness, MySqlTable)
        return self.harness

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.table.sql(statement, *values)

    def ids(self) -> list[int]:
        return self.table.ids()

    def staged(self) -> list[str]:
        return self.table.staged()

    def age_staged(self) -> None:
        """Let all staging tables be old."""
        for name in self.staged():
            ((comment,),) = self.sql(
                "SELECT table_comment FROM information_schema.tables WHERE table_name = %s", name
            )
            old = re.sub(r"at \\S+", "at 2020-01-01T00:00:00+00:00", comment)
            self.sql(f"ALTER TABLE {name} COMMENT '{old}'")


def query_into(url: str, query_id: str = "q1", **options: str) -> MySqlQuery:
    return MySqlQuery(MySqlTable(url), query_id, options)


def new_query(server: MySqlProcess, query_id: str = "q1", **options: str) -> MySqlQuery:
    return query_into(server.new_url(), query_id, **options)
