"""Options of `penstock.hudi`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ...committers.file_tables.evolution import SchemaEvolution
from ..delta.options import parse_location
from ..options.changes import TableChangeOptions, problems_of_changes
from ..options.declaring import declared, optional, options_of, passed_on, prefixes_of
from ..options.file_tables import FileTableOptions, partition_columns, problems_of_sorting
from ..options.parsing import MIB, check, columns, flag, one_of, parse_options, storable
from ..options.places import problems_of_plain_http
from ..options.stream import normalized_location, problems_of, problems_of_evolution

NAME = "penstock.hudi"

_FILE_BYTES_MAX = 4 * 1024 * MIB

_NOT_HERE = {
    "tableproperties": "tableProperties",
    "maintenance": "maintenance",
    "compacteveryseconds": "compactEverySeconds",
    "vacuumeveryseconds": "vacuumEverySeconds",
}
"""Options of other file tables. Hudi's own services compact and clean a table."""


def _table_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name):
        raise ValueError("must start with a letter and have letters, digits, '_' and '-' only")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class HudiOptions(TableChangeOptions, FileTableOptions):
    """Options of `penstock.hudi`."""

    schema_evolutions: ClassVar[frozenset[SchemaEvolution]] = frozenset(SchemaEvolution) - {
        SchemaEvolution.EVOLVE
    }
    path: str = field(
        metadata=declared(
            "path",
            parse_location,
            "Location of the table: a local path, or a URL such as `s3://bucket/table`.",
        )
    )
    record_key: tuple[str, ...] | None = optional(
        "recordKey",
        columns,
        "Columns of the record key of a new table: `a, b`, or a JSON array. They must not be NULL. With "
        "`writeMode=append`, rows are appended whether their key is in the table or not.",
        default="generated keys; with `writeMode=upsert`, `keys`",
    )
    partition_by: tuple[str, ...] | None = partition_columns()
    is_hive_style: bool | None = optional(
        "hiveStylePartitions",
        flag,
        "Partition folders of a new table are `column=value`; `false`: `value`.",
        default="`true`",
    )
    table_name: str | None = optional(
        "tableName", _table_name, "Name of a new table.", default="the last part of the path"
    )
    table_version: int | None = optional(
        "tableVersion",
        one_of({str(version): version for version in (6, 8, 9)}),
        "Version of a new table: `6`, `8` or `9`. Hudi 0 reads up to 6, Hudi 1.0 up to 8.",
        default="`6`",
    )
    storage_options: Mapping[str, str] = passed_on(
        "storage.",
        str.upper,
        "Options of the object store, named as in the Delta library, such as `storage.AWS_REGION`.",
    )

    @property
    def table_uri(self) -> str:
        """The normalized location: an absolute path on the local disk, or a URL without a trailing slash."""
        return normalized_location(self.path)

    @property
    def name_when_new(self) -> str:
        last = self.table_uri.rstrip("/").rpartition("/")[2]
        return self.table_name or re.sub(r"^(?=[^A-Za-z_])", "_", re.sub(r"[^A-Za-z0-9_-]", "_", last))

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> HudiOptions:
        """Parse the options that Spark passes.

        Raises:
            ConfigurationError: lists all problems, one sentence each.
        """
        given = {key: value for key, value in options.items() if key.lower() not in _NOT_HERE}
        values, problems = parse_options(OPTIONS, PREFIXES, given)
        if not values.get("path"):
            problems.append(
                'path is missing: say where the table is with .option("path", ...) or .start(path).'
            )
        problems += [
            f"{_NOT_HERE[key.lower()]} is not an option of {NAME}: Hudi's own services maintain its tables. "
            "Remove the option."
            for key in options
            if key.lower() in _NOT_HERE
        ]
        stored = storable(OPTIONS, given)
        problems += problems_of_evolution(cls, NAME, values)
        problems += problems_of(values, stored, PREFIXES)
        problems += problems_of_plain_http(values, ("path",))
        if (values.get("target_file_bytes") or 0) > _FILE_BYTES_MAX:
            problems.append(
                "targetFileSize must be at most 4gb: the commit copies the files of an object store, which "
                "copies up to 5 GB."
            )
        problems += problems_of_sorting(values)
        problems += problems_of_changes(values)
        check(NAME, problems)
        return cls(**values, given=stored)


OPTIONS = tuple(option for option in options_of(HudiOptions) if option.name.lower() not in _NOT_HERE)
PREFIXES = prefixes_of(HudiOptions)
