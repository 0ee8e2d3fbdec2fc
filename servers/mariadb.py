"""Runs MariaDB on the loopback: Debian's, unpacked and not installed. Tests can kill and restart it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pymysql
from servers.debian import unpacked
from servers.ports import free_port, wait_for
from servers.processes import send, stopped

USER, PASSWORD = "penstock", "geheim-4711"
_SCRIPTS = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")
_USERS = f"""
CREATE USER IF NOT EXISTS '{USER}'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';
GRANT ALL ON *.* TO '{USER}'@'127.0.0.1' WITH GRANT OPTION;
"""


class MariaDB:
    """A MariaDB server that can be started again with the same data and port.

    Args:
        options: further options of the server, such as `--local-infile=0`
    """

    def __init__(self, folder: Path, *options: str) -> None:
        files = unpacked("mariadb", ["mariadb-server-core"], with_libraries=True)
        arch = str(sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu")
        libraries = os.pathsep.join(str(files / lib / arch) for lib in ("usr/lib", "lib"))
        self._environment = {**os.environ, "LD_LIBRARY_PATH": libraries}
        self._folder, self._data = folder, folder / "data"
        self._data.mkdir()
        share = files / "usr" / "share" / "mysql"
        self._command = [
            str(files / "usr" / "sbin" / "mariadbd"), "--no-defaults", f"--basedir={files / 'usr'}",
            f"--lc-messages-dir={share}", f"--datadir={self._data}", f"--tmpdir={folder}", "--user=root",
            "--innodb-buffer-pool-size=256M",
        ]  # fmt: skip
        scripts = "".join((share / name).read_text() for name in _SCRIPTS)
        sql = f"CREATE DATABASE mysql;\nUSE mysql;\n{scripts}"
        bootstrap = [*self._command, "--bootstrap", "--innodb-flush-log-at-trx-commit=0"]
        with (folder / "bootstrap.log").open("wb") as log:
            subprocess.run(
                bootstrap, input=sql.encode(), stdout=log, stderr=log, env=self._environment, check=True
            )
        (folder / "users.sql").write_text(_USERS)
        self.port = free_port()
        self._options = options
        self.start()

    def start(self) -> None:
        """Start the server and wait until it responds; after a kill, this includes the recovery of InnoDB."""
        command = [
            *self._command, f"--port={self.port}", "--bind-address=127.0.0.1", "--skip-name-resolve",
            f"--socket={self._folder / 'socket'}", f"--pid-file={self._folder / 'pid'}",
            f"--init-file={self._folder / 'users.sql'}", "--max-connections=60", *self._options,
        ]  # fmt: skip
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)
        wait_for(self.port, self._process)

    def processes(self) -> list[psutil.Process]:
        return [psutil.Process(self._process.pid)]

    def kill(self) -> int:
        """Send SIGKILL to the server; return the number of processes."""
        killed = send(signal.SIGKILL, [psutil.Process(self._process.pid)])
        self._process.wait()
        return killed

    def stop(self) -> None:
        """Stop the server as for an upgrade: clients lose their connections, committed data is kept."""
        self._process.terminate()
        self._process.wait(60)

    def stopped(self) -> AbstractContextManager[None]:
        """Suspend the server with SIGSTOP during the block."""
        return stopped([psutil.Process(self._process.pid)])

    @property
    def environment(self) -> dict[str, str]:
        """How commands connect to it without a URL."""
        return {
            "MYSQL_HOST": "127.0.0.1",
            "MYSQL_TCP_PORT": str(self.port),
            "MYSQL_USER": USER,
            "MYSQL_PWD": PASSWORD,
        }

    def connect(self, database: str | None = None, **options: Any) -> pymysql.Connection[Any]:
        """Open a connection with autocommit, whose times are in UTC."""
        given = {"user": USER, "password": PASSWORD, **options}
        return pymysql.connect(
            host="127.0.0.1", port=self.port, database=database, autocommit=True, charset="utf8mb4",
            init_command="SET time_zone = '+00:00'", **given,
        )  # fmt: skip

    def new_url(self, user: str = USER, password: str = PASSWORD) -> str:
        """Create an empty database and return its URL."""
        name = f"t{uuid.uuid4().hex}"
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        return f"mysql://{user}:{password}@127.0.0.1:{self.port}/{name}"


@contextmanager
def mariadb(*options: str) -> Iterator[MariaDB]:
    """
    Raises:
        DebianUnreachableError: MariaDB cannot be downloaded.
    """
    folder = Path(tempfile.mkdtemp(prefix="penstock-mariadb-"))
    try:
        server = MariaDB(folder, *options)
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
