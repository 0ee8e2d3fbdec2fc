"""A table of `penstock.sql` in a Postgres server."""

from __future__ import annotations

from dataclasses import replace

import psycopg
from sqlalchemy import exc
from tests.conformance.harnesses import PostgresHarness
from tests.support.sqlite_table import SqliteHarness

from penstock.datasource.sql.stored import DESTINATION
from penstock.testing.conformance import SECRET


class SqlPostgresHarness(PostgresHarness):
    """A table in a schema of its own, with the statements that servers get, read by psycopg."""

    destination = DESTINATION
    promises = replace(
        SqliteHarness.promises, name="Tables of Postgres by penstock.sql", shows_secrets_to_tasks=True
    )
    lost_connection = exc.OperationalError(
        "COMMIT", None, psycopg.OperationalError("the connection was lost")
    )

    @property
    def read_options(self) -> dict[str, str]:
        return {}

    @property
    def unreachable_options(self) -> dict[str, str]:
        url = f"postgresql+psycopg://me:{SECRET}@127.0.0.1:{self.unreachable_port}/db"
        return {**self.options, "url": url}
