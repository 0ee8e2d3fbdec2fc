"""Errors for a table that is not the one that the stream wrote to, in the same words for each destination."""

from __future__ import annotations

from ..errors import TableChangedError


def dropped(table: str) -> TableChangedError:
    """
    Args:
        table: its kind and address, such as `Delta table /data/events`
    """
    return TableChangedError(
        f"The {table} no longer exists: it was dropped, moved or renamed while the stream used it. Nothing "
        "was committed. Restore the table, or start the query with a new checkpoint to write a new table "
        "from the beginning."
    )


def check_same_id(table: str, has: object, wrote: object, *, name: str = "id") -> None:
    """Check the id of a table.

    Args:
        table: see `dropped`
        wrote: id of the table that the stream wrote to; None if it is not known
        name: what the destination calls the id

    Raises:
        TableChangedError: the table has another id.
    """
    if wrote not in (None, has):
        raise TableChangedError(
            f"The {table} was dropped and re-created: its {name} is {has or 'missing'}, but the stream wrote "
            f"to {wrote or 'one without'}. Nothing was committed. Restore the old table, or start the query "
            "with a new checkpoint to write the new table from the beginning, or accept the new table:\n"
            "    penstock recover --accept-table"
        )


def check_not_behind(table: str, latest: int, used: int | None, *, unit: str = "version") -> None:
    """Check that a table has not lost its newest versions.

    Args:
        table: see `dropped`
        latest: newest version of the table
        used: a version that the stream has used; None if it is not known
        unit: what the destination calls a version

    Raises:
        TableChangedError: the table was at a later version before.
    """
    if used is not None and latest < used:
        raise TableChangedError(
            f"The {table} is at {unit} {latest}, but the stream has already used {unit} {used}: it was "
            f"rolled back or restored from a backup. Nothing was committed. Restore the newest {unit}, or "
            "start the query with a new checkpoint to write the table from the beginning."
        )
