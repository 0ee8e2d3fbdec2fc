"""Supported values of table properties. The Iceberg library detects invalid ones only in the middle of a
commit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyiceberg.table.name_mapping import parse_mapping_from_json

from ..file_tables.unsupported_features import UnsupportedFeature

EXPIRE_PROPERTY = "penstock.expire-snapshots"
MAINTENANCE_PROPERTY = "penstock.maintenance"
FREE_PROPERTIES = (EXPIRE_PROPERTY, MAINTENANCE_PROPERTY)
"""Penstock's own properties that a user may set."""

_FLAGS = frozenset(
    {
        *FREE_PROPERTIES,
        "commit.manifest-merge.enabled",
        "gc.enabled",
        "write.metadata.delete-after-commit.enabled",
        "write.object-storage.enabled",
        "write.object-storage.partitioned-paths",
    }
)
_WHOLE_NUMBERS = frozenset(
    {
        "commit.manifest.min-count-to-merge",
        "commit.manifest.target-size-bytes",
        "history.expire.max-ref-age-ms",
        "history.expire.max-snapshot-age-ms",
        "history.expire.min-snapshots-to-keep",
        "write.metadata.previous-versions-max",
        "write.summary.partition-limit",
    }
)
_LOCATIONS = frozenset(
    {
        "write.data.path",
        "write.folder-storage.path",
        "write.metadata.path",
        "write.object-storage.path",
    }
)
_CODECS = ("gzip", "zstd", "snappy", "uncompressed")


def is_maintained(properties: Mapping[str, str]) -> bool:
    """True if Penstock created the table and its maintenance is not disabled.

    Tables of early versions of Penstock have only `EXPIRE_PROPERTY`, with any value.
    """
    flag = properties.get(MAINTENANCE_PROPERTY)
    return EXPIRE_PROPERTY in properties if flag is None else flag.lower() == "true"


def unsupported_property(key: str, value: str) -> UnsupportedFeature | None:
    """Return what is wrong with a table property, of an existing table or of one to create."""
    named = f"{key} = {value}"
    if key == "write.format.default" and value.strip().lower() != "parquet":
        return UnsupportedFeature(named, "Penstock writes only Parquet files", f"set {key} to parquet")
    if key in ("write.location-provider.impl", "write.py-location-provider.impl"):
        return UnsupportedFeature(
            named, "a class named by the table decides where data files are stored", f"unset {key}"
        )
    if key.startswith("encryption."):
        return UnsupportedFeature(key, "files would have to be encrypted", "use a table without encryption")
    problem = _value_problem(key, value)
    return problem and UnsupportedFeature(named, problem[0], f"set {key} to {problem[1]}, or unset it")


def _value_problem(key: str, value: str) -> tuple[str, str] | None:
    """(what is wrong with the value, what to set instead); None if it is supported or never read."""
    if key in _FLAGS and value.lower() not in ("true", "false"):
        return "engines interpret it differently", "true or false"
    if key in _WHOLE_NUMBERS and not re.fullmatch(r"[0-9]{1,18}", value):
        return "it is not a whole number", "a whole number"
    if key in _LOCATIONS and not re.match(r"/|[a-z][a-z0-9+.-]*:/", value):
        return "it would depend on the working directory of a process", "an absolute path or a URL"
    if key == "write.avro.compression-codec" and value not in _CODECS:
        return "manifests cannot be written with it", f"one of {', '.join(_CODECS)}"
    if key == "schema.name-mapping.default":
        return _mapping_problem(value)
    return None


def _mapping_problem(value: str) -> tuple[str, str] | None:
    try:
        parse_mapping_from_json(value)
    except ValueError:
        return "it is not a name mapping", "a name mapping in JSON"
    return None
