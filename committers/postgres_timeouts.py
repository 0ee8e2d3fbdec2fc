"""Timeouts of Postgres connections: for the manifest store, Iceberg's SQL catalogs and Postgres tables.

Parameters set in the URL are not changed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

from .texts.safe_text import get_logger

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

logger = get_logger(__name__)

LOCK_TIMEOUT_S = 30.0
"""How long a transaction waits for a lock of another process."""
STATEMENT_TIMEOUT_S = 120
IDLE_TRANSACTION_TIMEOUT_S = 15
"""Shorter than LOCK_TIMEOUT_S: a driver that is paused inside a transaction loses it before others time
out.
"""
CONNECT_TIMEOUT_S = 10
KEEPALIVES_IDLE_S = 30
ANSWER_TIMEOUT_S = 180.0
"""How long the client waits for a response.

Longer than STATEMENT_TIMEOUT_S, after which a responsive server cancels the statement itself.
"""

_OPTION = re.compile(r"(?:^|\s)(?:-c\s*|--)([\w.-]+)=")
"""A setting in libpq's parameter `options`: `-c name=value` or `--name=value`."""


def connection_settings(url: URL) -> dict[str, int | str]:
    """libpq parameters that the URL does not set."""
    hosts = url.query.get("host", url.host or "")
    return missing_settings(url.query, hosts if isinstance(hosts, str) else ",".join(hosts))


def missing_settings(given: Container[str], hosts: str) -> dict[str, int | str]:
    """libpq parameters that are not set.

    With several hosts, libpq chooses one that accepts writes, not a standby.
    """
    settings: dict[str, int | str] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "keepalives_idle": KEEPALIVES_IDLE_S,
        "tcp_user_timeout": int(1000 * LOCK_TIMEOUT_S),
    }
    if "," in hosts:
        settings["target_session_attrs"] = "read-write"
    return {name: value for name, value in settings.items() if name not in given}


def set_timeouts(connection: Any, url: URL, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
    """Set the server-side timeouts of a new psycopg or psycopg2 connection."""
    set_time_limits(connection, str(url.query.get("options", "")), lock_timeout_s)


def set_time_limits(
    connection: Any,
    given: str,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
    statement_timeout_s: float = STATEMENT_TIMEOUT_S,
    idle_timeout_s: float = IDLE_TRANSACTION_TIMEOUT_S,
) -> None:
    """Set the server-side timeouts of a new psycopg or psycopg2 connection.

    Uses statements instead of the parameter `options`, which connection poolers reject.

    Args:
        given: libpq's parameter `options`; settings in it are kept
    """
    settings = {
        "lock_timeout": lock_timeout_s,
        "statement_timeout": statement_timeout_s,
        "idle_in_transaction_session_timeout": idle_timeout_s,
    }
    names = {name.replace("-", "_").lower() for name in _OPTION.findall(given)}
    if "statement_timeout" not in names:
        _limit_waiting(connection, statement_timeout_s + ANSWER_TIMEOUT_S - STATEMENT_TIMEOUT_S)
    statements = [f"SET {name} = '{seconds}s'" for name, seconds in settings.items() if name not in names]
    if statements:
        with connection.cursor() as cursor:
            cursor.execute("; ".join(statements))
        connection.commit()


def _limit_waiting(connection: Any, seconds: float) -> None:
    """Limit how long psycopg waits for a response. libpq has no parameter for that."""
    wait: Callable[..., Any] | None = getattr(connection, "wait", None)
    if wait is None:  # psycopg2 waits in C code
        return
    from psycopg import OperationalError, errors

    timeout_error = getattr(errors, "_WaitTimeout", None)
    if timeout_error is None or "timeout" not in inspect.signature(wait).parameters:
        logger.warning(
            "This version of psycopg cannot limit how long it waits for Postgres. "
            "Run: pip install --upgrade psycopg"
        )
        return

    def wait_for_so_long(generator: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return wait(generator, *arguments, **{"timeout": seconds, **options})
        except timeout_error:
            connection.close()
            raise OperationalError(f"Postgres has not responded for {seconds:.0f} s") from None

    connection.wait = wait_for_so_long
