"""The columns of Delta's change feed, which streams of other formats have, too: what happens to a row, and
when. Sinks take them with `changes=delta-cdf`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeAlias

import pyarrow as pa

from ...committers.errors import ConfigurationError

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIME = "_change_type", "_commit_version", "_commit_timestamp"
CHANGE_FIELDS = (
    pa.field(CHANGE_TYPE, pa.string()),
    pa.field(COMMIT_VERSION, pa.int64()),
    pa.field(COMMIT_TIME, pa.timestamp("us", "UTC")),
)
CHANGE_NAMES = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIME)
INSERT, DELETE = "insert", "delete"
BEFORE_UPDATE, AFTER_UPDATE = "update_preimage", "update_postimage"

ChangeValues: TypeAlias = tuple[tuple[str, Any], ...]
"""Values of these columns."""


def change_values(kind: str | None, version: int, at: datetime | None) -> ChangeValues:
    """
    Args:
        kind: None: not the same for all rows of the file
        version: of the table
        at: when it was made; None: unknown
    """
    own = () if kind is None else ((CHANGE_TYPE, kind),)
    return (*own, (COMMIT_VERSION, version), (COMMIT_TIME, at))


def check_change_names(
    table: str, names: Iterable[str], added: Iterable[str] = CHANGE_NAMES, feed: str = "change feed"
) -> None:
    """
    Args:
        table: its name, after `the`
        names: of its columns
        added: of the columns that say what happens to a row …
        feed: … which this has, too

    Raises:
        ConfigurationError: the table has columns with their names.
    """
    own = {name.lower() for name in names}
    if taken := [name for name in added if name in own]:
        raise ConfigurationError(
            f"changes: the {table} has a column {', '.join(taken)}, as its {feed} has. Nothing was read. "
            "Rename it."
        )
