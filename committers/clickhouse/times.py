"""The clock of a server."""

from __future__ import annotations

from datetime import datetime, timezone

from ..database.contract import Cursor


def server_time(cursor: Cursor) -> datetime:
    ((seconds,),) = cursor.execute("SELECT toUnixTimestamp(now())").fetchall()
    return datetime.fromtimestamp(int(seconds), timezone.utc)
