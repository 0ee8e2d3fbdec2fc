"""The files in the folder of a Paimon table."""

from __future__ import annotations

from ..delta.files import delta_files
from ..file_tables.files import TableFiles
from .table import PaimonTable


def files_of(table: PaimonTable) -> TableFiles | None:
    """Return the files in the table's folder; None if it is unknown: there is no table."""
    location = table.location()
    return None if location is None else delta_files(location, {})
