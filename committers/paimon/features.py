"""What a Paimon table must not have, so that its files can be added directly."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any

from ..file_tables.unsupported_features import UnsupportedFeature, refuse

_APPEND = "write an append table"
_OPTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "data-evolution.enabled": (("false",), "its files have row ids"),
    "row-tracking.enabled": (("false",), "its files have row ids"),
    "deletion-vectors.enabled": (("false",), "its deletion vectors are part of each commit"),
    "changelog-producer": (("none",), "it needs changelog files"),
    "metadata.iceberg.storage": (("disabled",), "pypaimon does not write the Iceberg metadata"),
    "tag.automatic-creation": (("none",), "pypaimon does not create the tags"),
    "file.format": (("parquet",), "Penstock writes Parquet"),
    "type": (("table",), "it is not a table of snapshots"),
    "branch": (("main",), "Penstock writes the main branch"),
}
"""Options that change what a commit or a data file has: allowed values, and the reason."""
_PRESENT = {
    "data-file.external-paths": "its files are outside of the table's folder",
    "data-file.path-directory": "its files are in another folder",
    "file-index.bloom-filter.columns": "pypaimon does not write file indexes",
    "file-index.bitmap.columns": "pypaimon does not write file indexes",
    "file-index.bsi.columns": "pypaimon does not write file indexes",
    "commit.callbacks": "pypaimon does not call them",
}
"""Options that a table must not have, and the reason."""


def refuse_unsupported(table: Any, path: str) -> None:
    """
    Args:
        table: of pypaimon

    Raises:
        TableNotSupportedError: lists all features of the table that a direct commit would violate.
    """
    refuse(_unsupported(table, path), f"The Paimon table {path}", "Paimon")


def _unsupported(table: Any, path: str) -> Iterator[UnsupportedFeature]:
    folder, name = posixpath.split(path)
    if posixpath.basename(folder) == "branch" and name.startswith("branch-"):
        yield UnsupportedFeature("branch", "it is a branch of another table", "write the main branch")
    if table.primary_keys:
        keys = ", ".join(table.primary_keys)
        yield UnsupportedFeature(f"primary key ({keys})", "rows with an existing key replace rows", _APPEND)
    options = {str(key): str(value) for key, value in table.table_schema.options.items()}
    bucket = options.get("bucket", "-1")
    if bucket != "-1":
        yield UnsupportedFeature(
            f"bucket={bucket}", "rows are distributed to buckets by their keys", "use a table with bucket=-1"
        )
    for option, (allowed, why) in _OPTIONS.items():
        value = options.get(option, allowed[0])
        if value.lower() not in allowed:
            remedy = f"reset the option {option}, or use another table"
            yield UnsupportedFeature(f"{option}={value}", why, remedy)
    for option, why in _PRESENT.items():
        if options.get(option):
            yield UnsupportedFeature(option, why, f"reset the option {option}, or use another table")
