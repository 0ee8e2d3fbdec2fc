"""Runs MariaDB and MySQL on the loopback, unpacked and not installed. Tests can kill and restart them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pymysql
from servers.debian import SID, unpacked
from servers.ports import free_port, wait_for
from servers.processes import send, stopped

USER, PASSWORD = "penstock", "geheim-4711"
_USERS = f"""
CREATE USER IF NOT EXISTS '{USER}'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';
GRANT ALL ON *.* TO '{USER}'@'127.0.0.1' WITH GRANT OPTION;
"""
_BOOTSTRAP = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")


class MySqlProcess(ABC):
    """A server that can be started again with the same data and port.

    Args:
        options: further options of the server, such as `--local-infile=0`
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder, self._data, self._options = folder, folder / "data", options
        self._environment = dict(os.environ)
        self._command = self._prepared()
        (folder / "users.sql").write_text(_USERS)
        self.port = free_port()
        self.start()

    @abstractmethod
    def _prepared(self) -> Sequence[str]:
        """Make the data directory; return the command of the server, without its addresses."""

    def _settings(self, files: Path) -> list[str]:
        return [
            "--no-defaults", f"--basedir={files / 'usr'}", f"--lc-messages-dir={files / 'usr/share/mysql'}",
            f"--datadir={self._data}", f"--tmpdir={self._folder}", "--user=root",
            "--innodb-buffer-pool-size=256M",
        ]  # fmt: skip

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

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Return the rows of the last statement."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def new_url(self, user: str = USER, password: str = PASSWORD) -> str:
        """Create an empty database and return its URL."""
        name = f"t{uuid.uuid4().hex}"
        self.execute(f"CREATE DATABASE {name}")
        return f"mysql://{user}:{password}@127.0.0.1:{self.port}/{name}"


class MariaDB(MySqlProcess):
    """MariaDB of this machine's Debian or Ubuntu."""

    def _prepared(self) -> Sequence[str]:
        files = unpacked("mariadb", ["mariadb-server-core"], with_libraries=True)
        self._environment["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, _libraries(files)))
        command = [str(files / "usr" / "sbin" / "mariadbd"), *self._settings(files)]
        self._data.mkdir()
        scripts = "".join((files / "usr" / "share" / "mysql" / name).read_text() for name in _BOOTSTRAP)
        sql = f"CREATE DATABASE mysql;\nUSE mysql;\n{scripts}"
        bootstrap = [*command, "--bootstrap", "--innodb-flush-log-at-trx-commit=0"]
        with (self._folder / "bootstrap.log").open("wb") as log:
            subprocess.run(
                bootstrap, input=sql.encode(), stdout=log, stderr=log, env=self._environment, check=True
            )
        return command


class MySQL(MySqlProcess):
    """MySQL of Debian's unstable suite, as no release of Debian has it, with the C library of that suite."""

    def _prepared(self) -> Sequence[str]:
        files = unpacked("mysql", ["mysql-server-core"], with_libraries=True, suite=SID)
        libraries = _libraries(files)
        (loader,) = libraries[0].glob("ld-linux-*.so.*")
        command = [
            str(loader), "--library-path", os.pathsep.join(map(str, libraries)),
            str(files / "usr" / "sbin" / "mysqld"), *self._settings(files),
            f"--plugin-dir={files / 'usr/lib/mysql/plugin'}", "--secure-file-priv=NULL",
        ]  # fmt: skip
        with (self._folder / "bootstrap.log").open("wb") as log:
            subprocess.run([*command, "--initialize-insecure"], stdout=log, stderr=log, check=True)
        return [*command, "--mysqlx=0", "--local-infile=1"]


def _libraries(files: Path) -> list[Path]:
    arch = str(sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu")
    return [files / folder / arch for folder in ("usr/lib", "lib")]


@contextmanager
def running(kind: Callable[..., MySqlProcess], *options: str) -> Iterator[MySqlProcess]:
    """
    Args:
        kind: `MariaDB` or `MySQL`

    Raises:
        DebianUnreachableError: it cannot be downloaded.
    """
    folder = Path(tempfile.mkdtemp(prefix="penstock-mysql-"))
    try:
        server = kind(folder, *options)
        try:
            yield server
        finally:
            with suppress(psutil.NoSuchProcess):  # the test has killed it
                server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
