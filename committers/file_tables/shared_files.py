"""Tables that share their data files with a table of another format, as `penstock.lake` writes them.

Both tables name the other one in a property. No maintenance of one table may delete or replace files that the
other one still needs. All checks read this property.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import TableNotSupportedError

SHARES_PROPERTY = "penstock.shares-files-with"
"""Kind and address of the other table, such as `delta:/lake/events`."""


def shared_with(properties: Mapping[str, str]) -> str | None:
    """Return the table that shares the files of the table with these properties; None if there is none."""
    return properties.get(SHARES_PROPERTY) or None


def check_written_together(properties: Mapping[str, str], table_uri: str, partner: str | None) -> None:
    """Check that a query writes both tables that share files, or a table that shares none.

    Args:
        partner: the other table that the query writes; None if it writes one table

    Raises:
        TableNotSupportedError: the rows would be in one of the two tables only.
    """
    other = shared_with(properties)
    if other == partner:
        return
    if other is None:
        raise TableNotSupportedError(
            f"The table {table_uri} does not share its files with {partner}: it was not created by "
            "penstock.lake. Nothing was written. Write both tables with penstock.fanout, or let "
            "penstock.lake create two new ones."
        )
    raise TableNotSupportedError(
        f"The table {table_uri} shares its files with {other}, by its property {SHARES_PROPERTY}. Rows that "
        "are written to one of them would be missing in the other. Nothing was written. Write both with "
        "penstock.lake."
    )
