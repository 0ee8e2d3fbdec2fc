"""Checks whether a Delta table supports data files that are committed directly.

A direct commit evaluates no constraints, generates no values and rewrites nothing. Features that need this
are rejected by name: at start, and again on the version that a commit is based on. Features are those of the
Delta protocol (`PROTOCOL.md`, "Table Features"). A feature that is not listed here is rejected, because its
requirements are unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..contract import Changes, Mode
from ..file_tables.shared_files import shared_with
from ..file_tables.unsupported_features import UnsupportedFeature, refuse
from .table_state import DeltaTableState

ALLOWED_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "typeWidening",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    }
)
"""Features that may be listed without being used. Their use is checked in columns and properties."""

BEYOND_LIBRARY = frozenset({"typeWidening", "variantType"})
"""Features of tables to which the Delta library does not commit. Penstock does, with its own log entries."""

_LIBRARY = "the Delta library cannot commit to it"

_REFUSED_FEATURES: Mapping[str, tuple[str, str]] = {
    "allowColumnDefaults": (
        "missing columns would have to be filled with the table's defaults",
        "drop the feature: ALTER TABLE ... DROP FEATURE allowColumnDefaults",
    ),
    "catalogManaged": ("the catalog, not the log directory, decides which commit wins", "use another table"),
    "catalogOwned-preview": (
        "the catalog, not the log directory, decides which commit wins",
        "use another table",
    ),
    "clustering": (
        "files must keep the clustering columns listed in domain metadata",
        "ALTER TABLE ... CLUSTER BY NONE, then DROP FEATURE clustering; or partition the table",
    ),
    "coordinatedCommits-preview": (
        "a coordinator, not the log directory, decides which commit wins",
        "use another table",
    ),
    "domainMetadata": (
        _LIBRARY,
        "ALTER TABLE ... DROP FEATURE domainMetadata, after the feature that needs it",
    ),
    "icebergCompatV1": ("files would need Iceberg field ids", "use a table without it"),
    "icebergCompatV2": ("files would need Iceberg field ids", "use a table without it"),
    "icebergCompatV3": ("files would need Iceberg field ids", "use a table without it"),
    "inCommitTimestamp": (
        "every commit would need a timestamp later than the last one",
        "ALTER TABLE ... DROP FEATURE inCommitTimestamp",
    ),
    "identityColumns": (_LIBRARY, "re-create the table without identity columns and their feature"),
    "rowTracking": (
        "every file would need its own row ids",
        "set delta.enableRowTracking to false, then ALTER TABLE ... DROP FEATURE rowTracking",
    ),
    "typeWidening-preview": (
        "files of older types must be converted when read, which the Delta library does not support",
        "ALTER TABLE ... DROP FEATURE 'typeWidening-preview'",
    ),
    "vacuumProtocolCheck": (_LIBRARY, "ALTER TABLE ... DROP FEATURE vacuumProtocolCheck"),
}


def check_supported(table: DeltaTableState, mode: Mode = "append") -> None:
    """
    Args:
        mode: what commits do with the rows of the table

    Raises:
        TableNotSupportedError: lists everything that committing files directly would violate.
    """
    found = [
        *_of_properties(table.metadata().configuration, mode),
        *_of_schema(table),
        *_of_protocol(table, mode),
    ]
    refuse(found, f"The Delta table {table.table_uri}", "Delta")


def _of_properties(properties: Mapping[str, str], mode: Mode) -> Iterator[UnsupportedFeature]:
    for key, value in sorted(properties.items()):
        if key.startswith("delta.constraints."):
            name = key.removeprefix("delta.constraints.")
            yield UnsupportedFeature(
                f"CHECK constraint {name!r} ({value})",
                "the constraint would not be checked",
                f"filter the rows in the query and ALTER TABLE ... DROP CONSTRAINT {name}",
            )
    mapping = properties.get("delta.columnMapping.mode", "none")
    if mapping != "none":
        yield UnsupportedFeature(
            f"column mapping (delta.columnMapping.mode = {mapping})",
            "files would need the table's physical column names and ids",
            "ALTER TABLE ... SET TBLPROPERTIES ('delta.columnMapping.mode' = 'none')",
        )
    for name in _NUMBERS:
        if name in properties and not re.fullmatch(r"-?[0-9]{1,9}", properties[name]):
            yield UnsupportedFeature(
                f"{name} = {properties[name]}", "it is not a whole number", f"set {name} to a whole number"
            )
    for name in _ENABLING_PROPERTIES:
        if properties.get(name, "false").lower() == "true":
            yield UnsupportedFeature(
                f"{name} = true", "commits would have to respect it", f"set {name} to false"
            )
    if mode != "append" and _is_on(properties, "delta.appendOnly"):
        yield UnsupportedFeature(
            "append-only table (delta.appendOnly = true)",
            "overwriting and changes remove rows",
            "use append, or ALTER TABLE ... SET TBLPROPERTIES ('delta.appendOnly' = 'false')",
        )
    has_feed = _is_on(properties, "delta.enableChangeDataFeed")
    if isinstance(mode, Changes) and has_feed and shared_with(properties) is not None:
        yield UnsupportedFeature(
            "change data feed (delta.enableChangeDataFeed = true) of a table that shares its files",
            "changes would need change files",
            "ALTER TABLE ... SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'false')",
        )
    if isinstance(mode, Changes) and has_feed and (mode.partial_columns or mode.history is not None):
        yield UnsupportedFeature(
            "change data feed (delta.enableChangeDataFeed = true), with updateColumns or history",
            "rows that a commit computes would be missing in the feed",
            "send whole rows without these options, or ALTER TABLE ... SET TBLPROPERTIES "
            "('delta.enableChangeDataFeed' = 'false')",
        )


def _is_on(properties: Mapping[str, str], name: str) -> bool:
    return properties.get(name, "false").strip().lower() == "true"


_NUMBERS = ("delta.checkpointInterval", "delta.dataSkippingNumIndexedCols")
"""Numeric properties that commits respect."""

_ENABLING_PROPERTIES = (
    "delta.enableIcebergCompatV1",
    "delta.enableIcebergCompatV2",
    "delta.enableIcebergCompatV3",
    "delta.enableInCommitTimestamps",
    "delta.enableRowTracking",
)
"""Column metadata keys. Each implies a rejected feature that some writers forget to list."""

_COLUMN_KEYS: Mapping[str, tuple[str, str, str]] = {
    "delta.invariants": (
        "invariant",
        "the constraint would not be checked",
        "re-create the table without it",
    ),
    "delta.generationExpression": (
        "generated column",
        "its values would not be generated or checked",
        "compute the column in the query and re-create the table without the expression",
    ),
    "delta.identity.start": (
        "identity column",
        "its values would not be generated",
        "re-create the table with an ordinary column",
    ),
    "CURRENT_DEFAULT": (
        "column default",
        "missing values would become NULL instead",
        "ALTER TABLE ... ALTER COLUMN ... DROP DEFAULT",
    ),
    "__COLLATIONS": (
        "collation",
        "statistics would not be in the order of the collation",
        "use a column without collation",
    ),
}


def _of_schema(table: DeltaTableState) -> Iterator[UnsupportedFeature]:
    has_variants = "variantType" in (table.protocol().writer_features or ())
    for path, is_variant, metadata in _columns(json.loads(table.schema().to_json())):
        if is_variant and (not has_variants or "." in path):
            yield UnsupportedFeature(
                f"variant column {path!r}",
                "variants are only written at the top level, with the table feature variantType",
                "store the value as a string column",
            )
        for key, (what, why, remedy) in _COLUMN_KEYS.items():
            if key in metadata:
                yield UnsupportedFeature(f"{what} {path!r} ({metadata[key]})", why, remedy)


def _columns(schema: Any, prefix: str = "") -> Iterator[tuple[str, bool, Mapping[str, Any]]]:
    """(dotted path, is it a variant?, field metadata) of every field, including nested ones."""
    if not isinstance(schema, dict):
        return
    for column in schema.get("fields", ()):
        path = f"{prefix}{column['name']}"
        yield path, column["type"] == "variant", column.get("metadata") or {}
        yield from _columns(column["type"], f"{path}.")
    for part in ("elementType", "keyType", "valueType"):
        yield from _columns(schema.get(part), f"{prefix}{part.removesuffix('Type')}.")


_IDENTITY_WRITER_VERSION = 6
"""Before table features were listed by name, this writer version introduced identity columns."""


def _of_protocol(table: DeltaTableState, mode: Mode) -> Iterator[UnsupportedFeature]:
    protocol = table.protocol()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    for feature in sorted(features & BEYOND_LIBRARY if mode == "overwrite" else ()):
        yield UnsupportedFeature(
            f"table feature {feature!r}",
            "the Delta library, which overwrites tables, cannot commit to it",
            f"append, or ALTER TABLE ... DROP FEATURE {feature}",
        )
    if protocol.min_writer_version == _IDENTITY_WRITER_VERSION:
        features.add("identityColumns")
    for feature in sorted(features - ALLOWED_FEATURES):
        why, remedy = _REFUSED_FEATURES.get(
            feature,
            (
                "its requirements for writers are unknown to this version of Penstock",
                f"ALTER TABLE ... DROP FEATURE {feature}",
            ),
        )
        yield UnsupportedFeature(f"table feature {feature!r}", why, remedy)
    if protocol.min_writer_version > 7 or protocol.min_reader_version > 3:
        yield UnsupportedFeature(
            f"Delta protocol ({protocol.min_reader_version}, {protocol.min_writer_version})",
            "it is newer than the versions known to Penstock (3, 7)",
            "update Penstock",
        )
