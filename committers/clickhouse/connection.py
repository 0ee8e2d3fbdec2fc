"""Statements over ClickHouse's HTTP interface, and the meaning of its errors. Runs anywhere.

Statements are sent one by one: ClickHouse has no transactions. So `commit` does nothing here.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import urlencode

from ..database.server import DatabaseServer
from ..errors import (
    NEXT_TRY,
    AccessRefusedError,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
)
from ..texts.safe_text import one_line
from .address import Settings, literal

CONNECT_TIMEOUT_S = 10.0
STATEMENT_TIMEOUT_S = 60.0
IDLE_S = 2.0
"""A connection that was idle for longer is not used again: servers close it after 3 to 10 seconds."""
BUFFER_BYTES = 32 * 1024 * 1024

LONG_BYTES = 100_000
"""Statements that are longer, as those over many staging tables are, need other limits of the server than its
own. It parses up to 256 KiB."""
_LIMITS = ("max_query_size", "max_ast_elements", "max_expanded_ast_elements")

_DENIED = {81, 164, 192, 193, 194, 195, 291, 492, 497, 516}
"""Codes: the database does not exist, or user or privileges are refused."""
_VALUES = {6, 27, 38, 41, 53, 69, 70, 72, 117, 131, 321, 349, 407, 469, 691}
"""Codes: a value cannot be parsed or converted, or violates a constraint."""
_TOO_MANY_PARTITIONS = "Too many partitions for single INSERT block"
_NAME = re.compile(r"\(([A-Z][A-Z0-9_]+)\)")
_CODE = re.compile(r"Code: (\d+)")
UNKNOWN_TABLE = 60
NO_SUCH_PART = (232, 248)
NO_SUCH_COLUMN = (10, 16, 47)
"""NOT_FOUND_COLUMN_IN_BLOCK, NO_SUCH_COLUMN_IN_TABLE, UNKNOWN_IDENTIFIER"""
COLUMN_EXISTS = (15, 44)

_NOT_TRUSTED = "CERTIFICATE_VERIFY_FAILED"

FIX_QUERY = (
    "Fix the url or the privileges of its user (docs/destinations/clickhouse.md lists them), then start the "
    "query again."
)


class ClickHouseError(Exception):
    """A statement failed.

    Args:
        text: from the server, or of the error of the connection
        code: of ClickHouse; 0 if no answer has come, so the statement may be running
    """

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code

    @property
    def is_lost(self) -> bool:
        """Return True if the server has not answered."""
        return self.code == 0


@dataclass(frozen=True, slots=True)
class ClickHouseServer(DatabaseServer):
    """See `DatabaseServer`. Pickled with its password."""

    errors: ClassVar[type[Exception]] = ClickHouseError

    settings: Settings
    name: str
    """Address of the table, for messages."""
    advice: str = FIX_QUERY
    """What to do if the database denies access."""
    insert_settings: Mapping[str, str] = field(default_factory=dict)
    """ClickHouse's settings for the INSERTs of tasks."""
    buffer_bytes: int = BUFFER_BYTES
    """Rows that a task sends together."""

    def connect(
        self, statement_timeout_s: float = STATEMENT_TIMEOUT_S, idle_timeout_s: float = 0.0
    ) -> ClickHouseConnection:
        """See `DatabaseServer`. The first statement connects."""
        return ClickHouseConnection(self.settings, statement_timeout_s)

    def failed(self, error: Any, so: str) -> PenstockError:
        what, of = self.in_short(error), f"the ClickHouse table {self.name}"
        if self.is_about_values(error):
            return SchemaMismatchError(f"The {of[4:]} rejected rows: {what}. {so}.")
        if error.code in _DENIED or _NOT_TRUSTED in what:
            return AccessRefusedError(f"The server of {of} denies access: {what}. {so}. {self.advice}")
        if _TOO_MANY_PARTITIONS in str(error):
            return RetryableError(
                f"The rows of a task have too many partitions of {of}: {what}. {so}. Distribute the rows by "
                "partition, or set setting.max_partitions_per_insert_block."
            )
        return RetryableError(
            f"The server of {of} failed: {what}. {so}. Check that it can be reached. {NEXT_TRY}"
        )

    def is_conflict(self, error: Any) -> bool:
        return False

    def is_about_values(self, error: Any) -> bool:
        return error.code in _VALUES

    def in_short(self, error: Any) -> str:
        """See `DatabaseServer`. Messages about values may have the values, so only their name is shown."""
        if self.is_about_values(error):
            return f"a value or a constraint ({self.code(error)})"
        text = str(error).partition("\n")[0]
        return one_line(Exception(text[:500]))

    def code(self, error: Any) -> str:
        names = _NAME.findall(str(error))
        return names[-1] if names else str(error.code)


class ClickHouseConnection:
    """A connection that is opened with the first statement, and again after an error or a pause."""

    def __init__(self, settings: Settings, statement_timeout_s: float) -> None:
        self._settings, self._timeout_s = settings, statement_timeout_s
        self._http: http.client.HTTPConnection | None = None
        self._used_at = 0.0
        self._is_pinned = False

    def cursor(self) -> ClickHouseCursor:
        return ClickHouseCursor(self)

    def commit(self) -> None:
        """Nothing: each statement takes effect at once."""

    def rollback(self) -> None:
        """Nothing, see `commit`."""

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """In the block statements fail once the connection was interrupted. So between two of them the server
        has not started again.

        Raises:
            ClickHouseError: the server does not answer.
        """
        self.send("SELECT 1")
        self._is_pinned = True
        try:
            yield
        finally:
            self._is_pinned = False

    def send(self, statement: str, rows: bytes | None = None, output: str = "JSONCompactEachRow") -> bytes:
        """Run a statement and return its result.

        Args:
            rows: of an INSERT, in its format
            output: format of the result

        Raises:
            ClickHouseError: it failed, or no answer has come.
        """
        try:
            return self._exchange(statement, rows, output)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise ClickHouseError(f"{type(error).__name__}: {error}") from None
        except ClickHouseError:
            self.close()
            raise

    def _exchange(self, statement: str, rows: bytes | None, output: str) -> bytes:
        given = {"default_format": output, "wait_end_of_query": "1"}
        given["output_format_json_quote_64bit_integers"] = "0"
        if rows is not None:
            given["query"] = statement
        body = statement.encode() if rows is None else rows
        if rows is None and len(body) > LONG_BYTES:
            given |= dict.fromkeys(_LIMITS, str(len(body) + 1))
        connection = self._connected()
        connection.request("POST", f"/?{urlencode(given)}", body, self._headers())
        response = connection.getresponse()
        content = response.read()
        self._used_at = time.monotonic()
        code = response.getheader("X-ClickHouse-Exception-Code")
        if response.status == 200 and code is None:
            return content
        text = content.decode(errors="replace")
        found = _CODE.search(text)
        number = int(code) if code and code.isdigit() else int(found[1]) if found else 0
        if not number and response.status < 500:
            number = -response.status  # a proxy has refused it
        raise ClickHouseError(text or f"HTTP {response.status}", number)

    def _headers(self) -> dict[str, str]:
        login = f"{self._settings.user}:{self._settings.password}".encode()
        return {"Authorization": f"Basic {b64encode(login).decode()}"}

    def _connected(self) -> http.client.HTTPConnection:
        is_idle = time.monotonic() - self._used_at > IDLE_S
        if self._http is not None and is_idle and not self._is_pinned:
            self.close()
        if self._http is None:
            if self._is_pinned:
                raise ConnectionError("the connection was interrupted")
            host, port = self._settings.host, self._settings.port
            if self._settings.scheme == "https":
                context = ssl.create_default_context()
                opened: http.client.HTTPConnection = http.client.HTTPSConnection(
                    host, int(port), timeout=CONNECT_TIMEOUT_S, context=context
                )
            else:
                opened = http.client.HTTPConnection(host, int(port), timeout=CONNECT_TIMEOUT_S)
            opened.connect()
            opened.auto_open = 0
            opened.sock.settimeout(self._timeout_s)
            self._http = opened
            self._used_at = time.monotonic()
        return self._http


class ClickHouseCursor:
    """See `Cursor`."""

    def __init__(self, connection: ClickHouseConnection) -> None:
        self.connection = connection
        self._rows: list[tuple[Any, ...]] = []

    @property
    def rowcount(self) -> int:
        return len(self._rows)

    def execute(self, statement: str, parameters: Iterable[Any] | None = None, /) -> ClickHouseCursor:
        if parameters is not None:
            statement %= tuple(map(literal, parameters))
        found = self.connection.send(statement)
        self._rows = [tuple(json.loads(line)) for line in found.splitlines()]
        return self

    def executemany(self, statement: str, parameters: Iterable[Any], /) -> None:
        for one in parameters:
            self.execute(statement, one)

    def fetchone(self) -> Any:
        return self._rows.pop(0) if self._rows else None

    def fetchall(self) -> Any:
        rows, self._rows = self._rows, []
        return rows
