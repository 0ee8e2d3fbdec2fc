"""The server of a table dies, and its copy takes over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from servers.mysql import PASSWORD, USER, MariaDB, running
from servers.postgres import postgres
from tests.support import mysql as mysql_support
from tests.support import postgres as postgres_support
from tests.support.backlogs import wait_until
from tests.support.mysql import MySqlQuery
from tests.support.postgres import PostgresQuery
from tests.support.unreachable import skipped_if_unreachable

from penstock.committers.errors import RetryableError, TableChangedError
from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance.query import ids
from penstock.testing.faults import crash_at


class Replicated(ABC):
    """A server that waits with each COMMIT until its copy has it. The copy is read-only."""

    @abstractmethod
    def query(self, **options: str) -> MySqlQuery | PostgresQuery:
        """A query into a new table of the server, which finds the copy when that has taken over."""

    @abstractmethod
    def cut_off(self) -> None:
        """From now on, the copy gets nothing more, and the server does not wait for it."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the server. The copy answers the query from then on."""

    @abstractmethod
    def promote(self) -> None:
        """Let the copy be written."""

    def unfinished(self) -> int:
        """Prepared transactions of the copy."""
        return 0


class ReplicatedPostgres(Replicated):
    """The query's url names both servers, first the one that must not be written."""

    def __init__(self, stack: ExitStack) -> None:
        self._primary = stack.enter_context(postgres())
        self._standby = stack.enter_context(postgres(self._primary))
        self._primary.wait_for_standbys()

    def query(self, **options: str) -> PostgresQuery:
        schema = self._primary.new_url().rpartition("%3D")[2]
        hosts = f"127.0.0.1:{self._standby.port},127.0.0.1:{self._primary.port}"
        settings = f"options=-csearch_path%3D{schema}"
        return postgres_support.query_into(f"postgresql://postgres@{hosts}/postgres?{settings}", **options)

    def cut_off(self) -> None:
        wait_until(lambda: self._standby.has_all_of(self._primary))
        self._standby.stop()
        self._primary.execute("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")

    def kill(self) -> None:
        self._primary.kill()
        if not self._standby.processes():
            self._standby.start()

    def promote(self) -> None:
        self._standby.promote()
        wait_until(lambda: not self._standby.is_standby)

    def unfinished(self) -> int:
        found = self._standby.execute("SELECT count(*) FROM pg_prepared_xacts")
        assert isinstance(found, int)
        return found


class ReplicatedMariaDB(Replicated):
    """The copy takes the address of the server over."""

    WRITER = "writer"
    """Without READ ONLY ADMIN, which the other user has: read-only servers would not refuse it."""

    def __init__(self, stack: ExitStack) -> None:
        waits = ("--rpl-semi-sync-master-enabled=1", "--rpl-semi-sync-master-wait-point=AFTER_SYNC")
        answers = ("--read-only=1", "--rpl-semi-sync-slave-enabled=1")
        with skipped_if_unreachable():
            self._primary = stack.enter_context(running(MariaDB, "--server-id=1", "--log-bin=log", *waits))
        self._replica = stack.enter_context(running(MariaDB, "--server-id=2", "--log-bin=log", *answers))
        self._replica.execute(
            f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {self._primary.port}, "
            f"MASTER_USER = '{USER}', MASTER_PASSWORD = '{PASSWORD}', MASTER_USE_GTID = slave_pos, "
            "MASTER_CONNECT_RETRY = 1",
            "START SLAVE",
        )
        wait_until(lambda: self._value("SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'") == "1")

    def _value(self, statement: str) -> str:
        ((_, value),) = self._primary.execute(statement)
        return str(value)

    def query(self, **options: str) -> MySqlQuery:
        url = self._primary.new_url()
        self._primary.execute(
            f"CREATE USER {self.WRITER}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'",
            f"GRANT ALL ON {url.rpartition('/')[2]}.* TO {self.WRITER}@'127.0.0.1'",
        )
        return mysql_support.query_into(url.replace(f"//{USER}:", f"//{self.WRITER}:"), **options)

    def cut_off(self) -> None:
        self._primary.execute("SET GLOBAL rpl_semi_sync_master_enabled = 0")
        position = self._value("SHOW VARIABLES LIKE 'gtid_binlog_pos'")
        self._replica.execute(f"SELECT MASTER_GTID_WAIT('{position}', 30)", "STOP SLAVE")

    def kill(self) -> None:
        self._primary.kill()
        self._replica.execute("STOP SLAVE", "RESET SLAVE ALL")
        self._replica.stop()
        self._replica.port = self._primary.port
        self._replica.start()

    def promote(self) -> None:
        self._replica.execute("SET GLOBAL read_only = 0")


PAIRS: dict[str, Callable[[ExitStack], Replicated]] = {
    "postgres": ReplicatedPostgres,
    "mariadb": ReplicatedMariaDB,
}


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest) -> Iterator[Replicated]:
    with ExitStack() as stack:
        yield PAIRS[request.param](stack)


@pytest.mark.parametrize("when", ["prepare.done", "commit.landed"])
def test_a_copy_that_takes_over_has_each_row_once(
    pair: Replicated, store: SqlManifestStore, when: str
) -> None:
    """It has what the tasks have staged, too. While it is read-only, batches wait."""
    query = pair.query()
    check_that_each_row_is_there_once(pair, query, store, when)


@pytest.mark.parametrize("when", ["prepare.done", "commit.landed"])
@pytest.mark.parametrize("pair", ["postgres"], indirect=True)
def test_a_standby_has_what_tasks_have_prepared(pair: Replicated, store: SqlManifestStore, when: str) -> None:
    """Replicas of MariaDB do not for sure: see docs/destinations/mysql.md."""
    query = pair.query(commit="prepared")
    check_that_each_row_is_there_once(pair, query, store, when)


def check_that_each_row_is_there_once(
    pair: Replicated, query: MySqlQuery | PostgresQuery, store: SqlManifestStore, when: str
) -> None:
    query.run(store, query.batch(0), ids(0))
    messages = query.write(query.plan(store, query.batch(1), ids(1).schema), [ids(1, 2), ids(3)])
    with crash_at(when):
        query.commit(store, messages)
    pair.kill()
    if when == "prepare.done":
        with pytest.raises(RetryableError, match=r"read-only.*standby"):
            query.recover(store)
    pair.promote()
    query.recover(store)
    query.run(store, query.batch(1), ids(1, 2), ids(3), run_id="r2")
    query.run(store, query.batch(2), ids(4), run_id="r2")

    assert query.ids() == [0, 1, 2, 3, 4]
    assert query.staged() == []
    assert pair.unfinished() == 0


def test_a_batch_that_the_copy_does_not_have_ends_the_query(
    pair: Replicated, store: SqlManifestStore
) -> None:
    """The query does not go on with the next batch."""
    query = pair.query()
    query.run(store, query.batch(0), ids(0))
    pair.cut_off()
    query.run(store, query.batch(1), ids(1))
    pair.kill()
    pair.promote()
    with pytest.raises(TableChangedError, match="has batch 0 as its last batch"):
        query.run(store, query.batch(2), ids(2), run_id="r2")

    assert query.ids() == [0]
