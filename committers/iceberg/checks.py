"""Which Iceberg tables take data files committed directly, and which would be violated by it.

What cannot be written right is refused by name: at start, and again on the very metadata that a commit is
based on. Harmless, and so not looked for: row-level deletes (an append leaves them alone, and an overwrite
removes every file that they are about; none of them reaches rows added later), `write.wap.enabled`,
`gc.enabled=false`, identifier fields (Iceberg lets nobody enforce them), distribution modes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import Transform, UnknownTransform, VoidTransform
from pyiceberg.types import DecimalType, FixedType, IcebergType, UUIDType

from ..file_tables.unsupported_features import UnsupportedFeature, refuse
from .library.snapshots import transform_name
from .properties import value_problem

FORMAT_VERSION_MAX = 2

MANIFEST_MERGE_KEY = "commit.manifest-merge.enabled"
"""On by default in Iceberg."""


def check_supported(table: Table, overwrite: bool) -> None:
    """
    Args:
        overwrite: will all rows be replaced?

    Raises:
        TableNotSupportedError: names everything that committing files directly would violate.
    """
    metadata = table.metadata
    found = [
        *_of_format(metadata),
        *_of_properties(metadata.properties),
        *_of_transforms(metadata),
        *_of_partitioning(metadata),
        *_of_alike_partitions(metadata),
        *_of_old_partitionings(table, overwrite),
    ]
    refuse(found, f"The Iceberg table {'.'.join(table.name())}", "Iceberg")


def _of_format(metadata: TableMetadata) -> Iterator[UnsupportedFeature]:
    if metadata.format_version > FORMAT_VERSION_MAX:
        yield UnsupportedFeature(
            f"format version {metadata.format_version}",
            "its row ids and deletion vectors are kept by the writers, and pyiceberg cannot commit to it",
            f"a table of format version {FORMAT_VERSION_MAX}; a table cannot go back to a lower version",
        )


def _of_properties(properties: Mapping[str, str]) -> Iterator[UnsupportedFeature]:
    for key, value in sorted(properties.items()):
        unsupported_feature = unsupported_property(key, value)
        if unsupported_feature is not None:
            yield unsupported_feature


def unsupported_property(key: str, value: str) -> UnsupportedFeature | None:
    """What is wrong with a table property, be it of a table that is there or of one to create."""
    named = f"{key} = {value}"
    if key == "write.format.default" and value.strip().lower() != "parquet":
        return UnsupportedFeature(named, "Penstock writes Parquet files only", f"set {key} to parquet")
    if key in ("write.location-provider.impl", "write.py-location-provider.impl"):
        return UnsupportedFeature(
            named, "a class of the table's own decides where data files go", f"unset {key}"
        )
    if key.startswith("encryption."):
        return UnsupportedFeature(key, "files would have to be encrypted", "a table without encryption")
    problem = value_problem(key, value)
    return problem and UnsupportedFeature(named, problem[0], f"set {key} to {problem[1]}, or unset it")


def _of_transforms(metadata: TableMetadata) -> Iterator[UnsupportedFeature]:
    """Wherever they are: pyiceberg forgets their names, and writes `unknown` when it commits to the table."""
    places: list[tuple[str, Transform[Any, Any]]] = []
    for spec_id, spec in metadata.specs().items():
        places += [(f"partitioning {spec_id}", part.transform) for part in spec.fields]
    for order in metadata.sort_orders:
        places += [(f"sort order {order.order_id}", part.transform) for part in order.fields]
    for place, transform in places:
        if isinstance(transform, UnknownTransform):
            yield UnsupportedFeature(
                f"transform {transform_name(transform)!r} in {place}",
                "it is not known here, and a commit would overwrite its name in the table's metadata",
                "a table that never had such a transform",
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
    """Of older partitionings too: merging manifests writes theirs anew."""
    for spec in metadata.specs().values():
        for parts in alike_partitions(spec, metadata.schema()):
            yield UnsupportedFeature(
                f"partition fields {' and '.join(repr(part.name) for part in parts)} of one type",
                ALIKE_PROBLEM,
                "a table that is partitioned by one of them only, or by columns of different precision",
            )


ALIKE_PROBLEM = (
    "pyiceberg would write manifests that define the type twice, which no other reader of Avro takes"
)


def alike_partitions(spec: PartitionSpec, schema: Schema) -> list[list[PartitionField]]:
    """The partition fields whose values are decimals, fixed or UUIDs of the very same type.

    Avro has a named type for each of these, which may be defined only once in a file.
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
    """Replacing rows, and merging manifests, writes manifests of older partitionings anew."""
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
                "its column was dropped, and pyiceberg cannot write its manifests anew without the type",
                f"{append_only}move its files to the present one: CALL ... rewrite_data_files",
            )


def _is_used(table: Table, spec_id: int) -> bool:
    """Has the head of any branch files of this partitioning? Reads manifest lists."""
    heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
    snapshots = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id in heads]
    return any(
        manifest.partition_spec_id == spec_id
        for snapshot in snapshots
        for manifest in snapshot.manifests(table.io)
    )
