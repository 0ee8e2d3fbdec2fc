"""The metadata of commits as Avro, for tables of version 8 and 9: `HoodieCommitMetadata` of Hudi."""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

from ..errors import ConfigurationError

_MAGIC = b"Obj\x01"
_SYNC = b"penstock" * 2
"""Fixed, so that each attempt to commit a manifest writes the same bytes."""


def is_avro(content: bytes) -> bool:
    return content.startswith(_MAGIC)


def check_library(table_uri: str) -> None:
    """
    Raises:
        ConfigurationError: fastavro is not installed.
    """
    if find_spec("fastavro") is None:
        raise ConfigurationError(
            f"The Hudi table {table_uri} has Avro in its timeline: the commits of table versions 8 and 9, "
            "and what Hudi's services have cleaned and archived. On the driver and where the delivery "
            'process runs, run: pip install "penstock[hudi]"'
        )


def encode(metadata: Mapping[str, Any]) -> bytes:
    from fastavro import writer

    file = io.BytesIO()
    writer(file, _schema(), [metadata], sync_marker=_SYNC)
    return file.getvalue()


def decode(content: bytes) -> dict[str, Any]:
    """Return the first record of an Avro file, which may be of any schema.

    Raises:
        ValueError: it is no such file.
    """
    from fastavro import reader

    try:
        record = next(iter(reader(io.BytesIO(content))))
    except (StopIteration, EOFError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"the Avro file cannot be read: {error!r}") from error
    if not isinstance(record, dict):
        raise ValueError(f"the Avro file has {record!r} instead of a record")
    return record


@cache
def _schema() -> Any:
    """The schema of `HoodieCommitMetadata` in Hudi 1.2, with all its fields."""
    from fastavro import parse_schema

    return parse_schema(_COMMIT)


def _optional(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None}


def _record(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": "org.apache.hudi.avro.model", "fields": list(fields)}


_STRING = {"type": "string", "avro.java.string": "String"}


def _map(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values, "avro.java.string": "String"}


_WRITE_STAT = _record(
    "HoodieWriteStat",
    _optional("fileId", _STRING),
    _optional("path", _STRING),
    _optional("prevCommit", _STRING),
    _optional("numWrites", "long"),
    _optional("numDeletes", "long"),
    _optional("numUpdateWrites", "long"),
    _optional("totalWriteBytes", "long"),
    _optional("totalWriteErrors", "long"),
    _optional("partitionPath", _STRING),
    _optional("totalLogRecords", "long"),
    _optional("totalLogFiles", "long"),
    _optional("totalUpdatedRecordsCompacted", "long"),
    _optional("numInserts", "long"),
    _optional("totalLogBlocks", "long"),
    _optional("totalCorruptLogBlock", "long"),
    _optional("totalRollbackBlocks", "long"),
    _optional("fileSizeInBytes", "long"),
    _optional("logVersion", "int"),
    _optional("logOffset", "long"),
    _optional("baseFile", _STRING),
    _optional("logFiles", {"type": "array", "items": _STRING}),
    _optional("cdcStats", _map("long")),
    _optional("prevBaseFile", _STRING),
    _optional("minEventTime", "long"),
    _optional("maxEventTime", "long"),
    _optional(
        "runtimeStats",
        _record(
            "HoodieRuntimeStats",
            _optional("totalScanTime", "long"),
            _optional("totalCreateTime", "long"),
            _optional("totalUpsertTime", "long"),
        ),
    ),
    _optional("totalLogFilesCompacted", "long"),
    _optional("totalLogReadTimeMs", "long"),
    _optional("totalLogSizeCompacted", "long"),
    _optional("tempPath", _STRING),
    _optional("numUpdates", "long"),
)

_COMMIT = _record(
    "HoodieCommitMetadata",
    _optional("partitionToWriteStats", _map({"type": "array", "items": _WRITE_STAT})),
    _optional("compacted", "boolean"),
    _optional("extraMetadata", _map(_STRING)),
    {"name": "version", "type": ["int", "null"], "default": 1},
    _optional("operationType", _STRING),
)
