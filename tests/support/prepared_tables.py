"""Tables that queries with `commit=prepared` write, and the transactions that the server keeps for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import psycopg
from servers.mysql import PASSWORD, MySQL, MySqlProcess
from servers.postgres import Postgres
from tests.support import mysql, postgres

from penstock.committers.database.staging import StagingName, query_hash


class PreparedTables(ABC):
    """
    Args:
        server: can be killed and started again
    """

    alters_id: ClassVar[str]
    """Makes times of the column `id`, which is empty."""

    def __init__(self, server: Any) -> None:
        self.server = server

    @abstractmethod
    def new_query(self) -> Any:
        """A query into the table `events` of an empty schema."""

    @abstractmethod
    def all_kept(self, query: Any) -> list[tuple[str, str]]:
        """Query id and name of each transaction that the server keeps."""

    @abstractmethod
    def end(self, query: Any, name: str, how: str) -> None:
        """Another user commits or rolls back."""

    @abstractmethod
    def without_rights(self, query: Any) -> Any:
        """A query of a user who may read the table of verdicts, and not write it."""

    def kept(self, query: Any) -> list[str]:
        """Names of the transactions that the server keeps for the table of the query."""
        target: Any = query.target()
        own = query_hash(query.query_id, target._address.sql)
        parsed = ((name, StagingName.parse(name)) for _, name in self.all_kept(query))
        return sorted(name for name, one in parsed if one is not None and one.query_hash == own)

    def left(self, query: Any) -> list[Any]:
        """What a batch should have removed."""
        return [*self.kept(query), *query.staged(), *query.sql("SELECT * FROM penstock_prepared")]


class PreparedInPostgres(PreparedTables):
    alters_id = "ALTER TABLE events ALTER COLUMN id TYPE timestamp USING 'now'"
    server: Postgres

    def new_query(self) -> postgres.PostgresQuery:
        return postgres.query_into(self.server.new_url(), commit="prepared")

    def all_kept(self, query: postgres.PostgresQuery) -> list[tuple[str, str]]:
        found = query.sql("SELECT gid FROM pg_prepared_xacts")
        return [(gid.partition("/")[0], gid.partition("/")[2]) for (gid,) in found]

    def end(self, query: postgres.PostgresQuery, name: str, how: str) -> None:
        with psycopg.connect(query.url.replace("+psycopg", ""), autocommit=True) as other:
            other.execute(f"{how} PREPARED '{query.query_id}/{name}'")

    def without_rights(self, query: postgres.PostgresQuery) -> postgres.PostgresQuery:
        user = f"u_{query.schema}"
        query.sql(f"CREATE ROLE {user} LOGIN")
        query.sql(f"GRANT ALL ON SCHEMA {query.schema} TO {user}")
        query.sql(f"GRANT ALL ON events, penstock_fence TO {user}")
        query.sql(f"GRANT SELECT ON penstock_prepared TO {user}")
        return postgres.query_into(query.url.replace("//postgres@", f"//{user}@"), commit="prepared")


class PreparedInMySql(PreparedTables):
    alters_id = "ALTER TABLE events MODIFY COLUMN id varchar(20)"
    server: MySqlProcess

    def new_query(self) -> mysql.MySqlQuery:
        return mysql.new_query(self.server, commit="prepared")

    def all_kept(self, query: mysql.MySqlQuery) -> list[tuple[str, str]]:
        return [(query_id, name) for _, query_id, name in self._recovered(query)]

    def _recovered(self, query: mysql.MySqlQuery) -> list[tuple[int, str, str]]:
        in_hex = isinstance(self.server, MySQL)
        found = query.sql("XA RECOVER CONVERT XID" if in_hex else "XA RECOVER")
        names = [
            (number, length, (bytes.fromhex(data.removeprefix("0x")) if in_hex else data).decode("latin-1"))
            for number, length, _, data in found
        ]
        return [(number, name[:length], name[length:]) for number, length, name in names]

    def end(self, query: mysql.MySqlQuery, name: str, how: str) -> None:
        (number,) = (number for number, *found in self._recovered(query) if found == [query.query_id, name])
        query.sql(f"XA {how} '{query.query_id}', '{name}', {number}")

    def without_rights(self, query: mysql.MySqlQuery) -> mysql.MySqlQuery:
        schema, user = query.table.schema, self.user_of(query)
        query.sql(f"GRANT CREATE, DROP, SELECT ON {schema}.* TO {user}@'127.0.0.1'")
        for name in ("events", "penstock_fence", "penstock_refused"):
            query.sql(f"GRANT INSERT, UPDATE, DELETE ON {schema}.{name} TO {user}@'127.0.0.1'")
        query.sql(f"GRANT INSERT ON {schema}.penstock_prepared TO {user}@'127.0.0.1'")
        url = query.table.url.replace("//penstock:", f"//{user}:")
        return mysql.query_into(url, commit="prepared")

    def user_of(self, query: mysql.MySqlQuery) -> str:
        """Create a user without rights on tables."""
        user = f"u{query.table.schema[:20]}"
        query.sql(f"CREATE USER {user}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'")
        if isinstance(self.server, MySQL):
            query.sql(f"GRANT XA_RECOVER_ADMIN ON *.* TO {user}@'127.0.0.1'")
        return user
