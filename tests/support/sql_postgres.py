"""A table of `penstock.sql` in a Postgres server."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import psycopg
from sqlalchemy import exc
from tests.conformance.harnesses import PostgresHarness
from tests.support.sqlite_table import SqliteHarness, commit_answers

from penstock.datasource.sql.stored import DESTINATION
from penstock.testing.conformance import SECRET, Lost


class SqlPostgresHarness(PostgresHarness):
    """A table in a schema of its own, with the statements that servers get, read by psycopg."""

    destination = DESTINATION
    promises = replace(
        SqliteHarness.promises, name="Tables of Postgres by penstock.sql", shows_secrets_to_tasks=True
    )

    @property
    def read_options(self) -> dict[str, str]:
        return {}

    @property
    def unreachable_options(self) -> dict[str, str]:
        url = f"postgresql+psycopg://me:{SECRET}@127.0.0.1:{self.unreachable_port}/db"
        return {**self.options, "url": url}

    def losing(self, lost: Lost) -> AbstractContextManager[None]:
        def answer(connection: Any) -> None:
            if lost == "response":
                connection.commit()
            else:
                connection.close()
            raise exc.OperationalError("COMMIT", None, psycopg.OperationalError("the connection was lost"))

        return commit_answers(answer)
