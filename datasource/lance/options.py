"""Options of `penstock.lance`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...committers.file_tables.evolution import SchemaEvolution
from ...committers.lance.schema import FILE_VERSIONS, FLOATS, FileVersion, Vector
from ...committers.maintenance import MaintenancePolicy
from ..delta.options import parse_location
from ..options.changes import (
    ChangeOptions,
    problems_of_changes,
    problems_of_late_rows,
)
from ..options.declaring import declared, option, option_of, optional, options_of, passed_on, prefixes_of
from ..options.delivery import TARGET_FILE_BYTES, DeliveryOptions
from ..options.file_tables import FileTableOptions
from ..options.parsing import flag, one_of
from ..options.places import problems_of_plain_http
from ..options.stream import normalized_location, parse_as

NAME = "penstock.lance"

_LENGTH_MAX = 65_536


def _vectors(text: str) -> dict[str, Vector]:
    """Parse `a:768, b:32:float16`."""
    vectors: dict[str, Vector] = {}
    for part in text.split(","):
        name, _, rest = part.strip().partition(":")
        length, _, element = rest.partition(":")
        element = element.strip().lower() or "float32"
        if not name.strip() or not length.strip().isdecimal() or element not in FLOATS:
            raise ValueError(
                "must be a list of columns with the length of their vectors, such as `embedding:768` or "
                f"`embedding:768:float16`, separated by commas. Elements: {', '.join(FLOATS)}"
            )
        if not 1 <= int(length) <= _LENGTH_MAX:
            raise ValueError(f"the length of a vector must be between 1 and {_LENGTH_MAX:,}")
        if name.strip().lower() in {known.lower() for known in vectors}:
            raise ValueError(f"names the column {name.strip()} twice")
        vectors[name.strip()] = Vector(int(length), element)
    return vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class LanceOptions(ChangeOptions, DeliveryOptions):
    """Options of `penstock.lance`."""

    schema_evolutions: ClassVar[frozenset[SchemaEvolution]] = frozenset(SchemaEvolution) - {
        SchemaEvolution.EVOLVE
    }
    path: str = field(
        metadata=declared(
            "path",
            parse_location,
            "Location of the table: a local path, or a URL such as `s3://bucket/table.lance`.",
        )
    )
    vectors: Mapping[str, Vector] = field(
        default_factory=dict,
        metadata=declared(
            "vectors",
            _vectors,
            "Columns to store as vectors, with their length: `embedding:768`, or `embedding:768:float16` for "
            "elements other than `float32`. The query's columns are `array<float>` or `array<double>`. "
            "Vectors of an existing table need no option.",
        ),
    )
    file_version: FileVersion | None = optional(  # noqa: RUF009  it returns a field
        "fileVersion",
        one_of({version: version for version in FILE_VERSIONS}),
        f"Version of the data files of a new table: {', '.join(FILE_VERSIONS)}.",
        default=f"`{FILE_VERSIONS[-1]}`",
    )
    stable_row_ids: bool = option(
        "stableRowIds",
        flag,
        "The rows of a new table keep their ids when they are compacted or updated.",
        default="false",
    )
    table_properties: Mapping[str, str] = option_of(FileTableOptions, "table_properties")
    target_file_bytes: int | None = option_of(FileTableOptions, "target_file_bytes")
    buffer_bytes_max: int = option_of(FileTableOptions, "buffer_bytes_max")
    maintenance: bool | None = option_of(FileTableOptions, "maintenance")
    compact_every_s: int = option_of(FileTableOptions, "compact_every_s")
    vacuum_every_s: int = option_of(FileTableOptions, "vacuum_every_s")
    storage_options: Mapping[str, str] = passed_on(
        "storage.",
        str.upper,
        "Options of the object store, such as `storage.AWS_REGION`, as in `penstock.delta`.",
    )

    @property
    def maintenance_policy(self) -> MaintenancePolicy:
        return MaintenancePolicy(self.maintenance, self.compact_every_s, self.vacuum_every_s)

    @property
    def deliver_after_bytes_default(self) -> int:
        return self.target_file_bytes or TARGET_FILE_BYTES

    @property
    def table_uri(self) -> str:
        """The normalized location: an absolute path on the local disk, or a URL without a trailing slash."""
        return normalized_location(self.path)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> LanceOptions:
        """Parse the options that Spark passes; see `parse_as`."""
        return parse_as(cls, NAME, options, problems_of_values=_problems)


def _problems(values: Mapping[str, Any]) -> list[str]:
    own = [name for name in values.get("table_properties", {}) if name == "penstock.table-id"]
    return [
        *problems_of_changes(values),
        *problems_of_late_rows(values, NAME),
        *(f"tableProperties: {name} is set by Penstock. Remove it." for name in own),
        *problems_of_plain_http(values, ("path",)),
    ]


OPTIONS = options_of(LanceOptions)
PREFIXES = prefixes_of(LanceOptions)
