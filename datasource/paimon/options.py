"""Options of `penstock.paimon`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...writers.local_path import local_path
from ..options.declaring import declared, option_of, optional, options_of, prefixes_of
from ..options.delivery import TARGET_FILE_BYTES, DeliveryOptions
from ..options.file_tables import FileTableOptions
from ..options.parsing import check, columns, parse_options, storable, text
from ..options.stream import normalized_location, problems_of

NAME = "penstock.paimon"


def _location(path: str) -> str:
    if re.search(r"[\x00-\x1f\x7f\\]", path):
        raise ValueError("must not contain control characters or backslashes")
    if local_path(path) is None:
        raise ValueError(
            "must be on a disk that driver and executors share: in an object store, Paimon's file-system "
            "catalog cannot create a snapshot only if it does not exist, so two writers would lose rows"
        )
    return text(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaimonOptions(DeliveryOptions):
    """Options of `penstock.paimon`."""

    path: str = field(
        metadata=declared(
            "path",
            _location,
            "Folder of the table on a disk that driver and executors share. In a warehouse of Paimon's "
            "file-system catalog: `<warehouse>/<database>.db/<table>`.",
        )
    )
    partition_by: tuple[str, ...] | None = optional(
        "partitionBy", columns, "Partition columns of a new table: `a, b`, or a JSON array."
    )
    table_properties: Mapping[str, str] = option_of(FileTableOptions, "table_properties")
    target_file_bytes: int | None = option_of(FileTableOptions, "target_file_bytes")
    buffer_bytes_max: int = option_of(FileTableOptions, "buffer_bytes_max")

    @property
    def deliver_after_bytes_default(self) -> int:
        return self.target_file_bytes or TARGET_FILE_BYTES

    @property
    def table_uri(self) -> str:
        """The normalized location: an absolute path on the local disk."""
        return normalized_location(self.path)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> PaimonOptions:
        """Parse the options that Spark passes.

        Raises:
            ConfigurationError: lists all problems, one sentence each.
        """
        values, problems = parse_options(OPTIONS, PREFIXES, options)
        if not values.get("path") and not options.get("path"):  # a wrong one is a problem already
            problems.append(
                'path is missing: say where the table is with .option("path", ...) or .start(path).'
            )
        if values.get("add_columns"):
            problems.append(
                "schemaEvolution=addColumns is not supported by penstock.paimon: add the columns with "
                "Paimon, for example with ALTER TABLE in Spark or Flink. Later batches have them."
            )
        stored = storable(OPTIONS, options)
        problems += problems_of(values, stored, PREFIXES)
        check(NAME, problems)
        return cls(**values, given=stored)


OPTIONS = options_of(PaimonOptions)
PREFIXES = prefixes_of(PaimonOptions)
