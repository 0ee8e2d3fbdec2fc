"""Time-outs of connections to Postgres, for the manifest store and for Iceberg's SQL catalogs.

What the URL's own parameters set is left as it is. A server that accepts the connection and stays silent is
noticed while connecting only; after that, a lease ends without progress (`datasource.delivery.lease`).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import URL

LOCK_TIMEOUT_S = 30.0
"""How long a transaction waits for another process before it gives up."""
STATEMENT_TIMEOUT_S = 120
IDLE_TRANSACTION_TIMEOUT_S = 15
"""Shorter than LOCK_TIMEOUT_S: a driver paused inside a transaction loses it before others give up."""
CONNECT_TIMEOUT_S = 10
KEEPALIVES_IDLE_S = 30


def connection_settings(url: URL) -> dict[str, int]:
    """Parameters of libpq that the URL does not set."""
    settings = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "keepalives_idle": KEEPALIVES_IDLE_S,
        "tcp_user_timeout": int(1000 * LOCK_TIMEOUT_S),
    }
    return {name: value for name, value in settings.items() if name not in url.query}


def set_timeouts(connection: Any, url: URL, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
    """Set the server's time-outs for a new connection of psycopg or psycopg2.

    By statements and not by the parameter `options`, which connection poolers refuse.
    """
    settings = {
        "lock_timeout": lock_timeout_s,
        "statement_timeout": STATEMENT_TIMEOUT_S,
        "idle_in_transaction_session_timeout": IDLE_TRANSACTION_TIMEOUT_S,
    }
    given = str(url.query.get("options", ""))
    statements = [f"SET {name} = '{seconds}s'" for name, seconds in settings.items() if name not in given]
    if statements:
        with connection.cursor() as cursor:
            cursor.execute("; ".join(statements))
        connection.commit()
