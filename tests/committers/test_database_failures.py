"""Servers of databases that fail: for every destination that writes into one, no row is lost or doubled. Or
an error says what is wrong, where, and what to do. All servers are real.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from servers.certificates import make_certificates
from servers.mysql import PASSWORD, MariaDB, MySQL, running
from servers.postgres import postgres
from servers.postgres_tls import postgres_tls
from tests.support.failing_databases import FailingDatabase, FailingMySql, FailingPostgres, Held, Tls
from tests.support.faults import in_next_call
from tests.support.lakes import ids
from tests.support.unreachable import skipped_if_unreachable

from penstock.committers.contract import ManifestState
from penstock.committers.database import transaction
from penstock.committers.database.fence import Fence
from penstock.committers.errors import AccessRefusedError, RetryableError
from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.faults import crash_at
from penstock.writers.database.staging_writer import StagingWriter

campaign = pytest.mark.campaign

KINDS = (
    "postgres",
    pytest.param("postgres-prepared", marks=campaign),
    "sql",
    "mariadb",
    pytest.param("mariadb-prepared", marks=campaign),
    pytest.param("mysql", marks=campaign),
    pytest.param("mysql-prepared", marks=campaign),
)
"""`penstock.postgres`, `penstock.sql` on Postgres, `penstock.mysql` on both servers; the first and last also
with `commit=prepared`.
"""

MYSQL = {"mariadb": MariaDB, "mysql": MySQL}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders with the certificate of the servers, and with that of another authority."""
    folders = tmp_path_factory.mktemp("tls"), tmp_path_factory.mktemp("other")
    for folder in folders:
        make_certificates(folder)
    return folders


@pytest.fixture(scope="module")
def databases(certificates: tuple[Path, Path]) -> Iterator[Callable[[str], FailingDatabase]]:
    """The servers, which only this file uses, for a kind of destination."""
    folder, _ = certificates
    with ExitStack() as stack:

        @cache
        def started(name: str) -> Any:
            stack.enter_context(skipped_if_unreachable())
            if name in MYSQL:
                tls = f"--ssl-cert={folder / 'ca.pem'}", f"--ssl-key={folder / 'key.pem'}"
                return stack.enter_context(running(MYSQL[name], *tls))
            server = stack.enter_context(postgres())
            return server, stack.enter_context(postgres_tls(server.port, folder))

        def database(kind: str) -> FailingDatabase:
            if (name := kind.removesuffix("-prepared")) in MYSQL:
                return FailingMySql(started(name), kind)
            server, tls_port = started("postgres")
            return FailingPostgres(server, kind, tls_port)

        yield database


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, databases: Callable[[str], FailingDatabase]) -> FailingDatabase:
    return databases(request.param)


@pytest.fixture
def query(database: FailingDatabase, store: SqlManifestStore) -> Any:
    """A query that has committed a batch."""
    query = database.new_query()
    query.run(store, query.batch(0), ids(0))
    return query


def said(error: pytest.ExceptionInfo[BaseException]) -> str:
    """The message, with those of its causes."""
    return "".join(traceback.format_exception(error.value))


# Who may connect --------------------------------------------------------------------------------------


def test_a_wrong_password_is_no_outage_and_is_not_shown(
    database: FailingDatabase, query: Any, store: SqlManifestStore
) -> None:
    with database.with_wrong_password(query) as other, pytest.raises(AccessRefusedError) as refused:
        other.plan(store, other.batch(1))
    assert "denies access" in str(refused.value)
    assert other.stream.table_uri in str(refused.value)
    assert "Fix the url or the privileges of its user" in str(refused.value)
    assert PASSWORD not in said(refused)

    query.run(store, query.batch(1), ids(1))
    assert query.ids() == [0, 1]


@pytest.mark.parametrize("mode", ["required", "verified"])
def test_connections_have_tls_if_the_url_says_so(
    database: FailingDatabase,
    query: Any,
    store: SqlManifestStore,
    certificates: tuple[Path, Path],
    mode: Tls,
) -> None:
    own, _ = certificates
    encrypted = database.with_tls(query, mode, own / "ca.pem")
    with database.requiring_tls(query) if isinstance(database, FailingMySql) else nullcontext():
        encrypted.target().plan_batch(ids(1).schema, "append", 1)
    assert query.ids() == [0]


def test_a_certificate_of_another_authority_is_refused(
    database: FailingDatabase, query: Any, store: SqlManifestStore, certificates: tuple[Path, Path]
) -> None:
    _, other = certificates
    deceived = database.with_tls(query, "verified", other / "ca.pem")
    with pytest.raises(AccessRefusedError, match=r"(?i)certificate.verify.failed.*Fix the url"):
        deceived.target().plan_batch(ids(1).schema, "append", 1)


def test_a_server_that_requires_tls_says_so(
    database: FailingDatabase, query: Any, store: SqlManifestStore
) -> None:
    plain = database.with_tls(query, "disabled")
    with database.requiring_tls(query), pytest.raises(AccessRefusedError) as refused:
        plain.plan(store, query.batch(1))
    assert re.search(r"ssl_mode=disabled.*TLS|no encryption", str(refused.value)), str(refused.value)
    assert "Fix the url" in str(refused.value)
    plain.run(store, query.batch(1), ids(1))
    assert query.ids() == [0, 1]


def test_a_server_without_tls_is_refused_if_the_url_requires_it(
    request: pytest.FixtureRequest, database: FailingDatabase, query: Any, store: SqlManifestStore
) -> None:
    if isinstance(database, FailingMySql):
        database = FailingMySql(request.getfixturevalue("mariadb_server"), database.kind)
        query = database.new_query()
    encrypted = database.with_tls(query, "required")
    with pytest.raises(AccessRefusedError, match=r"SSL.*required.*Fix the url|SSL is required.*Fix the url"):
        encrypted.target().plan_batch(ids(1).schema, "append", 1)


# Connections that are lost ----------------------------------------------------------------------------


def test_connections_that_end_between_batches_are_made_again(
    database: FailingDatabase, query: Any, store: SqlManifestStore
) -> None:
    plan = query.plan(store, query.batch(1), ids(1).schema)
    database.cut()
    messages = query.write(plan, [ids(1)])
    database.cut()
    query.commit(store, messages)
    database.cut()
    query.run(store, query.batch(2), ids(2))
    assert query.ids() == [0, 1, 2]


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_task_whose_connection_ends_while_it_loads_is_tried_again(
    database: FailingDatabase, query: Any, store: SqlManifestStore, is_loaded: bool
) -> None:
    """Before the server gets the rows, or after it."""

    def load(real: Any, *arguments: Any) -> None:
        if is_loaded:
            real(*arguments)
        database.cut()
        if not is_loaded:
            real(*arguments)

    plan = query.plan(store, query.batch(1), ids(1).schema)
    with in_next_call(StagingWriter, "_load", load), pytest.raises(RetryableError) as failed:
        query.write(plan, [ids(1, 2)])
    assert "The rows of this task were not staged" in str(failed.value)
    assert query.ids() == [0]
    assert query.staged() == []

    query.commit(store, query.write(plan, [ids(1, 2)], "r2"))
    assert query.ids() == [0, 1, 2]


@pytest.mark.parametrize("is_done", [False, True])
def test_a_commit_whose_connection_ends_takes_effect_once(
    database: FailingDatabase, query: Any, store: SqlManifestStore, is_done: bool
) -> None:
    """Before the server gets the COMMIT, or after it."""

    def commit(real: Any, server: Any, connection: Any) -> Any:
        error = real(server, connection) if is_done else None
        database.cut()
        return error or real(server, connection) or server.errors("the answer was lost")

    with in_next_call(transaction, "_commit", commit):
        if is_done:
            query.run(store, query.batch(1), ids(1, 2))
        else:
            with pytest.raises(RetryableError, match="The batch was not committed"):
                query.run(store, query.batch(1), ids(1, 2))
            assert query.ids() == [0]
    query.run(store, query.batch(1), ids(1, 2), run_id="r2")
    assert query.state(store, 1) is ManifestState.COMMITTED
    query.run(store, query.batch(2), ids(3))
    assert query.ids() == [0, 1, 2, 3]
    assert query.staged() == []


def test_a_commit_whose_connection_ends_after_rows_were_moved_is_tried_again(
    database: FailingDatabase, query: Any, store: SqlManifestStore
) -> None:
    """Rows and token are there for the transaction, and for nobody else."""

    def update(real: Any, *arguments: Any) -> None:
        real(*arguments)
        database.cut()
        real(*arguments)

    messages = query.write(query.plan(store, query.batch(1), ids(1).schema), [ids(1, 2)])
    with in_next_call(Fence, "update", update):
        with pytest.raises(RetryableError, match="The batch was not committed"):
            query.commit(store, messages)
    query.recover(store)
    assert query.ids() == [0, 1, 2]


# Limits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", ["row", "table"])
def test_a_lock_that_is_held_too_long_is_named_and_the_batch_comes_later(
    database: FailingDatabase,
    query: Any,
    store: SqlManifestStore,
    monkeypatch: pytest.MonkeyPatch,
    held: Held,
) -> None:
    impatient = database.impatient(query.with_options(maxCommitAttempts="1"), monkeypatch)
    if held == "table" and database.is_prepared:  # it is written by tasks
        attempt = partial(impatient.run, store, query.batch(1), ids(1))
    else:
        messages = query.write(query.plan(store, query.batch(1), ids(1).schema), [ids(1)])
        attempt = partial(impatient.commit, store, messages)
    with database.holding(query, held), pytest.raises(RetryableError, match=r"(?i)lock.*time-?out"):
        attempt()
    assert query.ids() == [0]

    query.run(store, query.batch(1), ids(1), run_id="r2")
    assert query.ids() == [0, 1]


@campaign
def test_a_statement_that_takes_too_long_is_named_and_the_batch_comes_later(
    database: FailingDatabase, query: Any, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried = database.hurried(query, monkeypatch)
    with database.slow(query), pytest.raises(RetryableError, match=r"(?s)time.*a smaller batch"):
        hurried.run(store, query.batch(1), ids(1))
    assert query.ids() == [0]

    query.run(store, query.batch(1), ids(1), run_id="r2")
    assert query.ids() == [0, 1]


@campaign
def test_a_server_without_free_connections_is_named_and_the_batch_comes_later(
    database: FailingDatabase, query: Any, store: SqlManifestStore
) -> None:
    plan = query.plan(store, query.batch(1), ids(1).schema)
    with database.crowded():
        with pytest.raises(RetryableError, match="no free connection"):
            query.write(plan, [ids(1)])
    messages = query.write(plan, [ids(1)], "r2")
    with database.crowded():
        with pytest.raises(RetryableError, match="no free connection"):
            query.commit(store, messages)

    query.run(store, query.batch(1), ids(1), run_id="r3")
    assert query.ids() == [0, 1]


# Servers that are standbys, or that restart -----------------------------------------------------------


@campaign
def test_a_server_that_is_read_only_is_named_and_the_batch_comes_later(
    database: FailingDatabase, query: Any, store: SqlManifestStore
) -> None:
    messages = query.write(query.plan(store, query.batch(1), ids(1).schema), [ids(1)])
    with database.read_only(), pytest.raises(RetryableError, match=r"read-only.*standby"):
        query.commit(store, messages)
    with database.read_only(), pytest.raises(RetryableError, match=r"read-only.*standby"):
        query.run(store, query.batch(1), ids(1), run_id="r2")
    query.run(store, query.batch(1), ids(1), run_id="r3")
    assert query.ids() == [0, 1]


@campaign
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_server_that_restarts_between_prepare_and_commit_has_all_rows(
    database: FailingDatabase, query: Any, store: SqlManifestStore, how: str
) -> None:
    manifest = query.prepare(store, query.batch(1), ids(1, 2), ids(3))
    getattr(database.server, how)()
    with pytest.raises(RetryableError, match="Check that it can be reached"):
        query.target().commit(manifest)
    database.server.start()
    query.recover(store)
    assert query.ids() == [0, 1, 2, 3]

    with crash_at("commit.landed"):
        query.run(store, query.batch(2), ids(4))
    getattr(database.server, how)()
    database.server.start()
    query.run(store, query.batch(2), ids(4), run_id="r2")
    query.run(store, query.batch(3), ids(5), run_id="r2")
    assert query.ids() == [0, 1, 2, 3, 4, 5]
    assert query.staged() == []
