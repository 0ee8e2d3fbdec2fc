"""Reads tables in plain Python, without Spark, as Arrow batches. docs/reading.md lists the formats.

    from penstock import reader

    for batch in reader.read("penstock.delta", path="/lake/flights", columns="day, origin"):
        ...

Names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .datasource.reading.tables import open_table, read
    from .readers.scan import ScanFile
    from .readers.table import TableScan

__all__ = ["ScanFile", "TableScan", "open_table", "read"]

_HOME = {"ScanFile": "readers.scan", "TableScan": "readers.table"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'penstock.reader' has no attribute {name!r}")
    home = _HOME.get(name, "datasource.reading.tables")
    return getattr(import_module(f".{home}", __package__), name)
