"""Options of `penstock.delta`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import unquote

from ...committers.file_tables.evolution import SchemaEvolution
from ...writers.local_path import local_path
from ..options.changes import FileChangeOptions, problems_of_changes
from ..options.declaring import declared, option, options_of, passed_on, prefixes_of
from ..options.file_tables import FileTableOptions, partition_columns, problems_of_sorting
from ..options.parsing import flag, text
from ..options.places import problems_of_plain_http
from ..options.stream import normalized_location, parse_as

NAME = "penstock.delta"


def parse_location(path: str) -> str:
    if re.search(r"[\x00-\x1f\x7f\\]", path):
        raise ValueError("must not contain control characters or backslashes")
    return text(path)


def parse_path(path: str) -> str:
    """The Delta library decodes a local path once more than everybody else. It decodes a URL as it should."""
    local = local_path(parse_location(path))
    if local is not None and (found := re.search("%[0-9A-Fa-f]{2}", local)):
        raise ValueError(
            f"must not contain {found[0]!r}: the Delta library takes it for {unquote(found[0])!r} "
            "and looks in another folder. Rename the folder"
        )
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaOptions(FileChangeOptions, FileTableOptions):
    """Options of `penstock.delta`."""

    schema_evolutions: ClassVar[frozenset[SchemaEvolution]] = frozenset(SchemaEvolution)
    takes_variants: ClassVar[bool] = True
    not_renamed: ClassVar[str] = (
        "it needs column mapping, whose physical names Penstock does not write into files. Add a column with "
        "the new name, or write another table"
    )
    path: str = field(
        metadata=declared(
            "path",
            parse_path,
            "Location of the table: a local path, or a URL such as `s3://bucket/table`.",
        )
    )
    partition_by: tuple[str, ...] | None = partition_columns()
    widens_types: bool = option(
        "typeWidening",
        flag,
        "With `schemaEvolution=evolve`: types of columns are widened also in a table without the table "
        "feature `typeWidening`, which it gets then. Delta for Spark 4 and DuckDB read such a table, the "
        "Delta library and Polars do not.",
        default="false",
    )
    storage_options: Mapping[str, str] = passed_on(
        "storage.",
        str.upper,
        "Options of the Delta library's object store, such as `storage.AWS_REGION`.",
    )

    @property
    def table_uri(self) -> str:
        """The normalized location: an absolute path on the local disk, or a URL without a trailing slash."""
        return normalized_location(self.path)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> DeltaOptions:
        """Parse the options that Spark passes; see `parse_as`."""
        return parse_as(cls, NAME, options, problems_of_values=_problems)


def _problems(values: Mapping[str, Any]) -> list[str]:
    evolves = values.get("schema_evolution") is SchemaEvolution.EVOLVE
    is_alone = values.get("widens_types", False) and not evolves
    return [
        *(["typeWidening: only a query with schemaEvolution=evolve has it."] if is_alone else []),
        *problems_of_sorting(values),
        *problems_of_changes(values),
        *problems_of_plain_http(values, ("path",)),
    ]


OPTIONS = options_of(DeltaOptions)
PREFIXES = prefixes_of(DeltaOptions)
