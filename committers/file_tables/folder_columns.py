"""Columns and values that readers take from the folders `name=value` of a path."""

from __future__ import annotations

from collections.abc import Iterable


def columns_in_path(path: str, columns: Iterable[str]) -> str:
    """Return why files below the path cannot have these columns; empty if they can.

    duckdb and Polars return the value of the folder in place of the values in the files. Case is ignored.
    """
    names = {name.lower(): name for name in columns}
    for folder in path.split("/"):
        name, is_value, _ = folder.partition("=")
        if is_value and name.lower() in names:
            return (
                f"readers take the folder {folder} of the path {path} for the column "
                f"{names[name.lower()]!r}: rename the column, or use another path"
            )
    return ""


def folder_value_problem(value: str | None) -> str | None:
    """Return why readers would take another value from the folder `name=value`; None if they would not."""
    if value is not None and value.upper() == "NULL":
        return f"is '{value}', which duckdb reads as NULL"
    return None
