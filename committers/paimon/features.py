"""What a Paimon table must not have, so that its files can be added directly.

Batches that append need a table without a primary key, and changes one with a fixed number of buckets.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from ..contract import Changes, Mode
from ..file_tables.unsupported_features import UnsupportedFeature, refuse

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
_MERGES: dict[str, tuple[tuple[str, ...], str]] = {
    "changelog-producer": (("none", "lookup", "full-compaction"), "a commit needs changelog files"),
    "deletion-vectors.enabled": (("false",), "readers see no row before a compaction, and pypaimon has none"),
    "merge-engine": (("deduplicate",), "rows of one key are not replaced by the last one"),
    "ignore-delete": (("false",), "readers would keep rows that are deleted"),
    "deduplicate.ignore-delete": (("false",), "readers would keep rows that are deleted"),
    "sequence.field.sort-order": (("ascending",), "the row with the smallest value of the order counts"),
    "sequence.snapshot-ordering": (("false",), "pypaimon does not write the numbers that it needs"),
    "bucket-function.type": (("default",), "Penstock computes only the default function"),
    "data-file.thin-mode": (("false",), "its files have no columns of the key"),
    "primary-key.nullable": (("false",), "Penstock refuses rows with NULL in the key"),
    "pk-clustering-override": (("false",), "its files are not sorted by the key"),
    "force-lookup": (("false",), "a commit has to wait for a compaction, which pypaimon does not have"),
}
"""Options that change how the rows of a key are merged: allowed values, and the reason."""
_PRESENT = {
    "data-file.external-paths": "its files are outside of the table's folder",
    "data-file.path-directory": "its files are in another folder",
    "file-index.bloom-filter.columns": "pypaimon does not write file indexes",
    "file-index.bitmap.columns": "pypaimon does not write file indexes",
    "file-index.bsi.columns": "pypaimon does not write file indexes",
    "commit.callbacks": "pypaimon does not call them",
    "rowkind.field": "a column tells the kinds of rows",
}
"""Options that a table must not have, and the reason."""


def refuse_unsupported(table: Any, path: str, mode: Mode) -> None:
    """
    Args:
        table: of pypaimon
        mode: of the batch to plan or to commit

    Raises:
        TableNotSupportedError: lists all features of the table that a direct commit would violate.
    """
    refuse(_unsupported(table, path, mode), f"The Paimon table {path}", "Paimon")


def _unsupported(table: Any, path: str, mode: Mode) -> Iterator[UnsupportedFeature]:
    folder, name = posixpath.split(path)
    if posixpath.basename(folder) == "branch" and name.startswith("branch-"):
        yield UnsupportedFeature("branch", "it is a branch of another table", "write the main branch")
    options = {str(key): str(value) for key, value in table.table_schema.options.items()}
    if isinstance(mode, Changes):
        yield from _unsupported_by_changes(table, options, mode)
    else:
        yield from _unsupported_by_appends(table, options)
    for option, (allowed, why) in {**_OPTIONS, **(_MERGES if table.primary_keys else {})}.items():
        value = options.get(option, allowed[0])
        if value.lower() not in allowed:
            remedy = f"reset the option {option}, or use another table"
            yield UnsupportedFeature(f"{option}={value}", why, remedy)
    for option, why in _PRESENT.items():
        if options.get(option):
            yield UnsupportedFeature(option, why, f"reset the option {option}, or use another table")


def _unsupported_by_appends(table: Any, options: Mapping[str, str]) -> Iterator[UnsupportedFeature]:
    if table.primary_keys:
        keys = ", ".join(table.primary_keys)
        yield UnsupportedFeature(
            f"primary key ({keys})",
            "rows with an existing key replace rows",
            f"write an append table, or replace rows with writeMode=upsert and keys={keys}",
        )
    bucket = options.get("bucket", "-1")
    if bucket != "-1":
        yield UnsupportedFeature(
            f"bucket={bucket}", "rows are distributed to buckets by their keys", "use a table with bucket=-1"
        )


def _unsupported_by_changes(
    table: Any, options: Mapping[str, str], changes: Changes
) -> Iterator[UnsupportedFeature]:
    if not table.primary_keys:
        keys = ", ".join(changes.keys)
        yield UnsupportedFeature(
            "no primary key",
            "its readers do not replace rows by key",
            f"use a table with the primary key {keys}, or leave writeMode out",
        )
        return
    bucket = options.get("bucket", "-1")
    if not bucket.isdecimal() or int(bucket) < 1:
        why = _BUCKETS.get(bucket, "it is not a number of buckets")
        yield UnsupportedFeature(f"bucket={bucket}", why, "use a table with a fixed number of buckets")
    fields = [one.strip() for one in options.get("sequence.field", "").split(",") if one.strip()]
    ordered = list(changes.order_by) if changes.late_rows == "ignore" else []
    if [one.lower() for one in fields] == [one.lower() for one in ordered]:
        return
    if ordered:
        yield UnsupportedFeature(
            f"sequence.field={','.join(fields) or 'none'}",
            "by this option readers find the newest row of a key, and lateRows=ignore takes orderBy",
            f"use a table with sequence.field={','.join(ordered)}, or leave lateRows out",
        )
    else:
        yield UnsupportedFeature(
            f"sequence.field={','.join(fields)}",
            "its readers ignore late rows, and without lateRows=ignore the last batch counts",
            f"set lateRows=ignore and orderBy={', '.join(fields)}, or use another table",
        )


_BUCKETS = {
    "-1": "an index assigns keys to buckets, which only one writer at a time can extend, and tasks are many",
    "-2": "readers see no row until a compaction of Paimon distributes it",
}
"""Why a table with a primary key cannot have these numbers of buckets."""
