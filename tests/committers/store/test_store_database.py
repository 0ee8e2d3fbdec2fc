"""Opening the manifest store: settings, schema versions, and errors that say what to do."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import traceback
import uuid
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

import penstock
from penstock.committers.contract import StreamKey
from penstock.committers.errors import ConfigurationError, RetryableError
from penstock.committers.store import database, engines
from penstock.committers.store.sql import open_store
from penstock.committers.store.tables import SCHEMA_VERSIONS, VERSION_TABLE, metadata

PACKAGE = Path(penstock.__file__).parent


def execute(url: str, statement: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


# Schema ---------------------------------------------------------------------------------------------


def test_migrations_lead_to_the_tables_that_the_code_uses(store_url: str) -> None:
    with open_store(store_url) as store, store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert compare_metadata(context, metadata) == []


def test_schema_versions_are_the_migrations() -> None:
    """Opening compares with the list, so that it need not load Alembic."""
    scripts = ScriptDirectory(str(PACKAGE / "committers" / "store" / "migrations"))
    assert [script.revision for script in scripts.walk_revisions()][::-1] == list(SCHEMA_VERSIONS)


def test_a_store_of_a_newer_version_is_refused(store_url: str) -> None:
    open_store(store_url).close()
    execute(store_url, f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(ConfigurationError, match=r"version 9999.*pip install --upgrade penstock"):
        open_store(store_url)


def test_a_store_shares_its_database_with_another_alembic_user(store_url: str) -> None:
    if store_url.startswith("sqlite"):
        Path(store_url.removeprefix("sqlite:///")).parent.mkdir()
    execute(store_url, "CREATE TABLE alembic_version (version_num VARCHAR(32))")
    execute(store_url, "INSERT INTO alembic_version VALUES ('of another application')")
    with open_store(store_url) as store:
        assert store.streams() == []


def test_opening_an_existing_store_does_not_load_alembic(store_url: str) -> None:
    open_store(store_url).close()
    code = (
        "import sys; from penstock.committers.store.sql import open_store; "
        f"open_store({store_url!r}).streams(); print('alembic' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_a_store_opens_from_a_zip(tmp_path: Path) -> None:
    """Spark takes packages as zip files; Alembic wants its scripts in a directory."""
    archive = tmp_path / "penstock.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.write(PACKAGE / "__init__.py", "penstock/__init__.py")
        for path in (PACKAGE / "committers").rglob("*.py"):
            zipped.write(path, f"penstock/{path.relative_to(PACKAGE)}")
    url = f"sqlite:///{tmp_path}/store.db"
    code = (
        "import penstock.committers.store.sql as s; "
        f"assert '.zip' in s.__file__, s.__file__; print(s.open_store({url!r}).streams())"
    )
    environment = {**os.environ, "PYTHONPATH": str(archive)}
    output = subprocess.check_output([sys.executable, "-c", code], text=True, env=environment)
    assert output == "[]\n"


# Settings -------------------------------------------------------------------------------------------


def test_sqlite_survives_power_loss_and_serves_readers_during_writes(tmp_path: Path) -> None:
    full = 2
    with open_store(f"sqlite:///{tmp_path}/a/b/store.db") as store, store.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == full
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_no_postgres_transaction_waits_for_ever(store_url: str) -> None:
    settings = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
    with open_store(store_url) as store, store.engine.connect() as connection:
        values = [connection.exec_driver_sql(f"SHOW {setting}").scalar() for setting in settings]
        level = connection.exec_driver_sql("SHOW transaction_isolation").scalar()
    assert values == ["30s", "2min", "15s"]
    assert level == "read committed"


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_a_url_without_a_driver_takes_psycopg(store_url: str) -> None:
    for drivername in ("postgresql", "postgres"):
        with open_store(store_url.replace("postgresql+psycopg", drivername, 1)) as store:
            assert store.name.startswith("postgresql+psycopg://")


@pytest.mark.parametrize("url", ["sqlite:///{}/store.db", "sqlite:///file:{}/store.db?uri=true"])
def test_only_its_owner_may_read_a_new_sqlite_store(tmp_path: Path, url: str) -> None:
    """Its log and its shared memory too, while it is open."""
    before = os.umask(0o002)
    try:
        with open_store(url.format(tmp_path)) as store:
            assert not store.streams()
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(["store.db", "store.db-wal", "store.db-shm"], 0o600)


# Errors ---------------------------------------------------------------------------------------------

SECRET = "s3cr3t"
UNUSABLE = {
    "no url": ("/lake/store.db", "cannot be parsed.*sqlite:////"),
    "nothing": ("", "cannot be parsed"),
    "another database": (f"mysql+pymysql://me:{SECRET}@host/db", "'mysql.pymysql'.*sqlite:////"),
    "another driver": (f"postgresql+psycopg2://me:{SECRET}@host/db", r"psycopg2.*postgresql\+psycopg://"),
    "no port": (f"postgresql://me:{SECRET}@host:port/db", "[Pp]ercent-encode"),
    "password in the wrong place": (f"postgresql://me:{SECRET}/db", "cannot be parsed"),
    "at in the password": (f"postgresql://me:p@{SECRET}@host/db", "[Pp]ercent-encode"),
    "slash in the user": (f"postgresql://me/x:{SECRET}@host/db", "[Pp]ercent-encode"),
    "slash in the password": (
        f"postgresql://me:p/{SECRET}@127.0.0.1:1/db",
        r"me:\*\*\*@.*refused.*Check host",
    ),
    "unreachable": (f"postgresql+psycopg://me:{SECRET}@127.0.0.1:1/db", r"me:\*\*\*@.*refused.*Check host"),
    "password in the query": (
        f"postgresql+psycopg://127.0.0.1:1/db?user=me&password={SECRET}",
        "refused.*Check host",
    ),
    "memory": ("sqlite://", "not a file"),
    "memory by name": ("sqlite:///:memory:", "not a file"),
    "memory by uri": ("sqlite:///file:x?mode=memory&uri=true", "not a file"),
    "directory is a file": (f"sqlite:///{__file__}/store.db", "cannot be created.*option `store`"),
    "no database": (f"sqlite:///{__file__}", "not a database.*Penstock store"),
}


@pytest.mark.parametrize(("url", "message"), UNUSABLE.values(), ids=list(UNUSABLE))
def test_an_unusable_url_has_a_remedy_and_hides_the_password(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        open_store(url)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_missing_driver_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'penstock\[postgres\]'"):
        open_store("postgresql+psycopg://me@host/db")


TRUST_DOMAIN = """
CREATE ROLE {role} LOGIN PASSWORD 'x';
CREATE SCHEMA {role} AUTHORIZATION {role};
ALTER ROLE {role} IN DATABASE {database} SET search_path = {role};
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT CONNECT ON DATABASE {database} TO {role}
"""


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_a_missing_permission_is_named(store_url: str) -> None:
    url = sa.make_url(store_url)
    schema = str(url.query["options"]).partition("=")[2]
    execute(store_url, f"CREATE ROLE {schema} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {schema}")
    with pytest.raises(ConfigurationError, match=r"permission denied.*GRANT CREATE ON SCHEMA"):
        open_store(url.set(username=schema).render_as_string(hide_password=False))


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_a_role_with_its_own_schema_neither_reads_nor_changes_another_store(store_url: str) -> None:
    """As docs/security.md sets it up, for two trust domains in one database."""
    database = str(sa.make_url(store_url).database)
    roles = [f"{name}_{uuid.uuid4().hex[:12]}" for name in ("flights", "payments")]
    for role in roles:
        for statement in TRUST_DOMAIN.format(role=role, database=database).split(";"):
            execute(store_url, statement)
    own = sa.make_url(store_url).difference_update_query(["options"])  # the tests' own search_path
    urls = [own.set(username=role, password="x").render_as_string(hide_password=False) for role in roles]
    for url, role in zip(urls, roles, strict=True):
        with open_store(url) as store:
            store.register_stream(StreamKey(role, "/table"), "delta", role)
    for url, role, other in zip(urls, roles, reversed(roles), strict=True):
        with open_store(url, must_exist=True) as store:
            assert [stream.query_name for stream in store.streams()] == [role]
        for statement in (
            f"SELECT * FROM {other}.penstock_streams",
            f"DELETE FROM {other}.penstock_streams",
            f"CREATE TABLE {other}.t (id int)",
            "CREATE TABLE public.t (id int)",
            f"SET ROLE {other}",
        ):
            with pytest.raises(sa.exc.ProgrammingError, match="permission denied"):
                execute(url, statement)


def test_a_failed_migration_is_no_wrong_configuration(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leaves nothing behind: the next opening starts from an empty database again."""

    def broken(connection: sa.Connection) -> None:
        connection.exec_driver_sql("CREATE TABLE penstock_half_done (x INTEGER)")
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(database, "_run_migrations", broken)
        with pytest.raises(ZeroDivisionError):
            open_store(store_url)
    with open_store(store_url) as store, store.engine.connect() as connection:
        assert not sa.inspect(connection).has_table("penstock_half_done")


def test_a_locked_store_is_no_wrong_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a driver that was stopped in the middle of its first transaction."""
    monkeypatch.setattr(engines, "LOCK_TIMEOUT_S", 0.05)
    with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(RetryableError, match=r"(?s)database is locked.*next start.*tries again"):
            open_store(f"sqlite:///{tmp_path}/store.db")
    open_store(f"sqlite:///{tmp_path}/store.db").close()
