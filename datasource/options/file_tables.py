"""Options of the sinks for file tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ...committers.maintenance import MaintenancePolicy
from .declaring import declared, option, optional, options_of
from .delivery import TARGET_FILE_BYTES, TARGET_FILE_SIZE, DeliveryOptions
from .parsing import MIB, Option, columns, count, flag, one_of, properties, size

COMPRESSION = "zstd"

_CODECS = {"zstd": "zstd", "snappy": "snappy", "gzip": "gzip", "lz4": "lz4", "uncompressed": "none"}
_COMPACT_WITH: Mapping[str, Literal["local", "spark", "none"]] = {
    "local": "local",
    "spark": "spark",
    "none": "none",
}


def partition_columns(note: str = "Partition columns of a new table") -> tuple[str, ...] | None:
    """Declare `partitionBy`."""
    return optional(
        "partitionBy",
        columns,
        f"{note}: `a, b`, or a JSON array. Spark ignores `partitionBy()` of a stream writer for this sink.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTableOptions(DeliveryOptions):
    """Options of all sinks for file tables. None: the table's setting or, without one, the default."""

    table_properties: Mapping[str, str] = field(
        default_factory=dict,
        metadata=declared(
            "tableProperties", properties, "Properties of a new table, as a JSON object of strings."
        ),
    )
    target_file_bytes: int | None = optional(
        "targetFileSize",
        size(MIB // 16, 64 * 1024 * MIB),
        "Approximate size of a data file.",
        default=f"`{TARGET_FILE_SIZE}`, or as an Iceberg table says",
    )
    buffer_bytes_max: int = option(
        "bufferSize",
        size(MIB, 64 * 1024 * MIB),
        "Size of the rows that one task buffers for all its open partitions, as Arrow data.",
        default="128mb",
    )
    row_group_rows: int | None = optional(
        "rowGroupRows",
        count(1, 2**31 - 1),
        "Rows per Parquet row group.",
        default="250,000, or as an Iceberg table says",
    )
    max_open_partitions: int = option(
        "maxOpenPartitions",
        count(1, 10_000),
        "Data files that one task keeps open, at most half of what the operating system allows a process. "
        "Beyond it, the task closes the largest ones.",
        default="1000",
    )
    compression: str | None = optional(
        "compression",
        one_of(_CODECS),
        f"Codec of the data files: {', '.join(_CODECS)}.",
        default=f"`{COMPRESSION}`, or as an Iceberg table says",
    )
    sort_within: tuple[str, ...] = field(
        default=(),
        metadata=declared("sortWithin", columns, "Columns to sort the rows by, within each row group."),
    )
    compact_with: Literal["local", "spark", "none"] = option(
        "compactWith",
        one_of(_COMPACT_WITH),
        "What rewrites small files to `targetFileSize` before they are delivered: the delivery process "
        "(`local`), a Spark job (`spark`), or nothing (`none`). With `spark` and `writeMode=upsert`, Spark "
        "also finds the rows that a delivery replaces in a large table.",
        default="local",
    )
    maintenance: bool | None = optional(
        "maintenance",
        flag,
        "The delivery process maintains the table: it compacts small files, writes log checkpoints, and "
        "deletes removed files and orphan files. `expireSnapshots` is a separate option.",
        default="`true` if the table property `penstock.maintenance` is, as in tables that Penstock created",
    )
    compact_every_s: int = option(
        "compactEverySeconds",
        count(0, 365 * 86_400),
        "Seconds between two compactions of small files in the table; 0 turns them off.",
        default="600",
    )
    vacuum_every_s: int = option(
        "vacuumEverySeconds",
        count(0, 365 * 86_400),
        "Seconds between two vacuums, which delete files that the table no longer needs and whose retention "
        "has passed; 0 turns them off.",
        default="86400",
    )

    @property
    def maintenance_policy(self) -> MaintenancePolicy:
        return MaintenancePolicy(self.maintenance, self.compact_every_s, self.vacuum_every_s)

    @property
    def deliver_after_bytes_default(self) -> int:
        return self.target_file_bytes or TARGET_FILE_BYTES


def refused_file_options(name: str, known: Sequence[Option], instead_of_path: str) -> dict[str, str]:
    """Return problems, by name, of options that only destinations with files have.

    Args:
        name: of the data source, for messages
        known: the options of the destination
        instead_of_path: the option that names the destination
    """
    own = {option.name for option in known}
    of_files = {"partitionBy", *(option.name for option in options_of(FileTableOptions))}
    refused = {
        **{
            option: f"{option} is an option of lake tables. {name} writes no files: remove the option."
            for option in of_files
        },
        "path": f'path is not an option: give .option("{instead_of_path}", ...) and .start() without a path.',
    }
    return {name: problem for name, problem in refused.items() if name not in own}


def problems_of_sorting(values: Mapping[str, Any]) -> list[str]:
    """Return problems of `sortWithin` in a table with partition columns."""
    both = set(values.get("partition_by") or ()) & set(values.get("sort_within") or ())
    if not both:
        return []
    return [
        f"sortWithin contains the partition column(s) {', '.join(sorted(both))}, which are constant within a "
        "file."
    ]
