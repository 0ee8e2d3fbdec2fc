"""The MariaDB server of a table dies, and its replica takes over its address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from servers.mysql import PASSWORD, USER, MariaDB, MySqlProcess, running
from tests.support.backlogs import wait_until
from tests.support.mysql import MySqlQuery, query_into
from tests.support.unreachable import skipped_if_unreachable

from penstock.committers.errors import RetryableError, TableChangedError
from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance.query import ids
from penstock.testing.faults import crash_at

WRITER = "writer"
"""Without READ ONLY ADMIN, which the other user has: read-only servers would not refuse it."""
PRIMARY = ("--rpl-semi-sync-master-enabled=1", "--rpl-semi-sync-master-wait-point=AFTER_SYNC")
REPLICA = ("--read-only=1", "--rpl-semi-sync-slave-enabled=1")


@pytest.fixture
def servers() -> Iterator[tuple[MySqlProcess, MySqlProcess]]:
    """The primary, whose transactions wait for the replica, and the replica."""
    with ExitStack() as stack:
        with skipped_if_unreachable():
            primary = stack.enter_context(running(MariaDB, "--server-id=1", "--log-bin=log", *PRIMARY))
        replica = stack.enter_context(running(MariaDB, "--server-id=2", "--log-bin=log", *REPLICA))
        follow(primary, replica)
        yield primary, replica


def follow(primary: MySqlProcess, replica: MySqlProcess) -> None:
    execute(
        replica,
        f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {primary.port}, MASTER_USER = '{USER}', "
        f"MASTER_PASSWORD = '{PASSWORD}', MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1",
        "START SLAVE",
    )
    wait_until(lambda: value(primary, "SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'") == "1")


def promote(replica: MySqlProcess, address: int) -> None:
    """End replication, and take the address over. The server is still read-only."""
    execute(replica, "STOP SLAVE", "RESET SLAVE ALL")
    replica.stop()
    replica.port = address
    replica.start()


def execute(server: MySqlProcess, *statements: str) -> list[tuple[Any, ...]]:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


def value(server: MySqlProcess, statement: str) -> str:
    return str(execute(server, statement)[0][1])


@pytest.fixture
def query(servers: tuple[MySqlProcess, MySqlProcess]) -> MySqlQuery:
    primary, _ = servers
    url = primary.new_url()
    execute(
        primary,
        f"CREATE USER {WRITER}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'",
        f"GRANT ALL ON {url.rpartition('/')[2]}.* TO {WRITER}@'127.0.0.1'",
    )
    return query_into(url.replace(f"//{USER}:", f"//{WRITER}:"))


@pytest.mark.parametrize("when", ["prepare.done", "commit.landed"])
def test_a_replica_that_is_promoted_has_each_row_once(
    servers: tuple[MySqlProcess, MySqlProcess], query: MySqlQuery, store: SqlManifestStore, when: str
) -> None:
    """It has what the tasks have staged, too. While it is read-only, batches wait."""
    primary, replica = servers
    query.run(store, query.batch(0), ids(0))
    messages = query.write(query.plan(store, query.batch(1), ids(1).schema), [ids(1, 2), ids(3)])
    with crash_at(when):
        query.commit(store, messages)
    primary.kill()
    with pytest.raises(RetryableError):
        query.recover(store)
    promote(replica, primary.port)
    if when == "prepare.done":
        with pytest.raises(RetryableError, match=r"read-only.*standby"):
            query.recover(store)
    execute(replica, "SET GLOBAL read_only = 0")
    query.recover(store)
    query.run(store, query.batch(1), ids(1, 2), ids(3), run_id="r2")
    query.run(store, query.batch(2), ids(4), run_id="r2")

    assert query.ids() == [0, 1, 2, 3, 4]
    assert query.staged() == []


def test_a_batch_that_the_replica_does_not_have_ends_the_query(
    servers: tuple[MySqlProcess, MySqlProcess], query: MySqlQuery, store: SqlManifestStore
) -> None:
    """Without semi-synchronous replication. The query does not go on with the next batch."""
    primary, replica = servers
    execute(primary, "SET GLOBAL rpl_semi_sync_master_enabled = 0")
    query.run(store, query.batch(0), ids(0))
    position = value(primary, "SHOW VARIABLES LIKE 'gtid_binlog_pos'")
    execute(replica, f"SELECT MASTER_GTID_WAIT('{position}', 30)", "STOP SLAVE")
    query.run(store, query.batch(1), ids(1))
    primary.kill()
    promote(replica, primary.port)
    execute(replica, "SET GLOBAL read_only = 0")
    with pytest.raises(TableChangedError, match="has batch 0 as its last batch"):
        query.run(store, query.batch(2), ids(2), run_id="r2")

    assert query.ids() == [0]
