"""Checks whether an Iceberg table supports data files that are committed directly.

Unsupported features are rejected by name: at start, and again on the metadata that a commit is based on.
These are harmless and not checked: row-level deletes (an append does not touch them, an overwrite removes
every file that they refer to, and they do not apply to rows added later; changes check them when they read
them), `write.wap.enabled`, `gc.enabled=false`, identifier fields (Iceberg does not enforce them),
distribution modes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import Transform, UnknownTransform, VoidTransform
from pyiceberg.types import DecimalType, DoubleType, FixedType, IcebergType, UUIDType

from ..contract import Changes, Mode
from ..file_tables.unsupported_features import UnsupportedFeature, refuse
from .library.snapshots import transform_name
from .properties import unsupported_property

FORMAT_VERSION_MAX = 2
DELETES_FORMAT_VERSION = 2
"""The first one with delete files."""

MANIFEST_MERGE_KEY = "commit.manifest-merge.enabled"
"""Enabled by default in Iceberg."""


def check_supported(table: Table, mode: Mode = "append") -> None:
    """
    Args:
        mode: what commits do with the rows of the table

    Raises:
        TableNotSupportedError: lists everything that committing files directly would violate.
    """
    metadata = table.metadata
    found = [
        *_of_format(metadata),
        *filter(None, (unsupported_property(*item) for item in sorted(metadata.properties.items()))),
        *_of_transforms(metadata),
        *_of_partitioning(metadata),
        *_of_alike_partitions(metadata),
        *_of_old_partitionings(table, mode != "append"),
        *(_of_changes(table, mode) if isinstance(mode, Changes) else ()),
    ]
    refuse(found, f"The Iceberg table {'.'.join(table.name())}", "Iceberg")


def _of_format(metadata: TableMetadata) -> Iterator[UnsupportedFeature]:
    if metadata.format_version > FORMAT_VERSION_MAX:
        yield UnsupportedFeature(
            f"format version {metadata.format_version}",
            "writers must maintain its row ids and deletion vectors, and pyiceberg cannot commit to it",
            f"use a table of format version {FORMAT_VERSION_MAX}; a table cannot go back to a lower version",
        )


def _of_changes(table: Table, changes: Changes) -> Iterator[UnsupportedFeature]:
    metadata = table.metadata
    if changes.merge == "on-read" and metadata.format_version < DELETES_FORMAT_VERSION:
        yield UnsupportedFeature(
            f"format version {metadata.format_version} with merge=on-read",
            "it has no delete files",
            "use merge=on-write, or ALTER TABLE ... SET TBLPROPERTIES ('format-version' = '2')",
        )
    if has_double_partitions(table):
        yield UnsupportedFeature(
            "partitions by a double",
            "pyiceberg reads their values with single precision, and would write them back so",
            "use append, or a table that is partitioned by another column",
        )


def check_no_equality_deletes(table: Table, branch: str) -> None:
    """Check the summary of the branch's head, if it tells. Commits of changes look at the delete files.

    Raises:
        TableNotSupportedError: there are some.
    """
    head = table.metadata.snapshot_by_name(branch)
    summary = {} if head is None or head.summary is None else head.summary.additional_properties
    count = summary.get("total-equality-deletes", "0")
    if count != "0":
        found = UnsupportedFeature(
            f"{count} equality deletes",
            "which rows they delete is only known after reading all of them",
            "rewrite its data files, which removes them: CALL ... rewrite_data_files(table => '...', options "
            "=> map('delete-file-threshold', '1')), and let its other writers write position deletes",
        )
        refuse([found], f"The Iceberg table {'.'.join(table.name())}", "Iceberg")


def has_double_partitions(table: Table) -> bool:
    schema = table.metadata.schema()
    sources = {part.source_id for spec in table.metadata.partition_specs for part in spec.fields}
    return any(
        isinstance(schema.find_type(one), DoubleType) for one in sources.intersection(schema.field_ids)
    )


def _of_transforms(metadata: TableMetadata) -> Iterator[UnsupportedFeature]:
    """Unknown transforms, in any spec: pyiceberg drops their names, and writes `unknown` when it commits."""
    places: list[tuple[str, Transform[Any, Any]]] = []
    for spec_id, spec in metadata.specs().items():
        places += [(f"partitioning {spec_id}", part.transform) for part in spec.fields]
    for order in metadata.sort_orders:
        places += [(f"sort order {order.order_id}", part.transform) for part in order.fields]
    for place, transform in places:
        if isinstance(transform, UnknownTransform):
            yield UnsupportedFeature(
                f"transform {transform_name(transform)!r} in {place}",
                "the transform is unknown, and a commit would overwrite its name in the table's metadata",
                "use a table that never had such a transform",
            )


def _of_partitioning(metadata: TableMetadata) -> Iterator[UnsupportedFeature]:
    schema = metadata.schema()
    for part in metadata.spec().fields:
        problem = _problem(part, schema)
        if problem is not None:
            yield UnsupportedFeature(
                f"partition field {part.name!r} ({part.transform})",
                problem,
                f"ALTER TABLE ... DROP PARTITION FIELD {part.name}",
            )


def _problem(part: PartitionField, schema: Schema) -> str | None:
    column = index_by_id(schema).get(part.source_id)
    if column is None:
        return "its column was dropped, and pyiceberg cannot read manifests without the column's type"
    if isinstance(part.transform, (UnknownTransform, VoidTransform)):
        return None
    if not column.field_type.is_primitive or not part.transform.can_transform(column.field_type):
        return f"its transform is not defined for {column.field_type}"
    return None


def _of_alike_partitions(metadata: TableMetadata) -> Iterator[UnsupportedFeature]:
    """Includes older specs: merging manifests rewrites theirs."""
    for spec in metadata.specs().values():
        for parts in alike_partitions(spec, metadata.schema()):
            yield UnsupportedFeature(
                f"partition fields {' and '.join(repr(part.name) for part in parts)} of one type",
                ALIKE_PROBLEM,
                "use a table that is partitioned by only one of them, or by columns of different precision",
            )


ALIKE_PROBLEM = "pyiceberg would write manifests that define the type twice, which other Avro readers reject"


def alike_partitions(spec: PartitionSpec, schema: Schema) -> list[list[PartitionField]]:
    """The partition fields that have the same decimal, fixed or UUID type.

    Avro has a named type for each of these, which may be defined only once per file.
    """
    alike: dict[IcebergType, list[PartitionField]] = {}
    for part in spec.fields:
        column = index_by_id(schema).get(part.source_id)
        if column is not None and column.field_type.is_primitive:
            kind = part.transform.result_type(column.field_type)
            if isinstance(kind, DecimalType | FixedType | UUIDType):
                alike.setdefault(kind, []).append(part)
    return [parts for parts in alike.values() if len(parts) > 1]


def _of_old_partitionings(table: Table, overwrite: bool) -> Iterator[UnsupportedFeature]:
    """Replacing rows and merging manifests both rewrite manifests of older specs."""
    metadata = table.metadata
    is_merging = metadata.properties.get(MANIFEST_MERGE_KEY, "true").lower() == "true"
    columns = index_by_id(metadata.schema())
    for spec_id, spec in metadata.specs().items():
        dropped = [part.name for part in spec.fields if part.source_id not in columns]
        is_old = spec_id != metadata.default_spec_id
        if is_old and dropped and (overwrite or is_merging) and _is_used(table, spec_id):
            append_only = "" if overwrite else f"set {MANIFEST_MERGE_KEY} to false, or "
            yield UnsupportedFeature(
                f"older partitioning {spec_id} by {', '.join(map(repr, dropped))}",
                "its column was dropped, and pyiceberg cannot rewrite its manifests without the "
                "column's type",
                f"{append_only}rewrite its files with the current spec: CALL ... rewrite_data_files",
            )


def _is_used(table: Table, spec_id: int) -> bool:
    """Return True if the head of any branch has files of this spec. Reads manifest lists."""
    heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
    snapshots = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id in heads]
    return any(
        manifest.partition_spec_id == spec_id
        for snapshot in snapshots
        for manifest in snapshot.manifests(table.io)
    )
