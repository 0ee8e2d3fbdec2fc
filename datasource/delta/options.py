"""Options of `penstock.delta`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from ..options import common
from ..options.parsing import Option, Prefix, check, columns, parse_options, storable, text

NAME = "penstock.delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaOptions(common.LakeOptions):
    """Options of `penstock.delta`."""

    path: str
    partition_by: tuple[str, ...] | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> DeltaOptions:
        """Parse what Spark hands over.

        Raises:
            ConfigurationError: lists everything that is wrong, one sentence each.
        """
        values, problems = parse_options(OPTIONS, PREFIXES, options)
        if not values.get("path"):
            problems.append(
                'path is missing: say where the table is with .option("path", ...) or .start(path).'
            )
        stored = storable(OPTIONS, options)
        problems += common.problems_of(values, stored, PREFIXES)
        both = set(values.get("partition_by") or ()) & set(values.get("sort_within") or ())
        if both:
            problems.append(
                f"sortWithin names partition column(s) {', '.join(sorted(both))}: they are constant in a "
                "file."
            )
        check(NAME, problems)
        return cls(**values, given=stored)


def _location(path: str) -> str:
    if re.search(r"[\x00-\x1f\x7f\\]", path):
        raise ValueError("must not have control characters or backslashes in it")
    return text(path)


OPTIONS = (
    Option(
        "path", "path", _location, "Where the table is: a local path, or a URL such as `s3://bucket/table`."
    ),
    Option(
        "partitionBy", "partition_by", columns, "Partition columns of a new table: `a, b` or a JSON array."
    ),
    *common.OPTIONS,
)

PREFIXES = (
    Prefix(
        "storage.",
        "storage_options",
        str.upper,
        "Handed to the object store of the Delta library, such as `storage.AWS_REGION`.",
    ),
)

assert {known.field for known in (*OPTIONS, *PREFIXES)} | {"given"} == {f.name for f in fields(DeltaOptions)}
