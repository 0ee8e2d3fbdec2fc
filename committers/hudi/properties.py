"""The properties of a Hudi table: which tables Penstock writes, and how it creates one."""

from __future__ import annotations

import json
import re
import uuid
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ..cleaning.deletion import is_relative
from ..errors import TableNotSupportedError
from .layout import LAYOUT_1, Layout
from .names import META
from .schema import Record

PATH = ".hoodie/hoodie.properties"
VERSIONS = ("6", "8", "9")
"""Versions of tables that Penstock writes."""

ID = "penstock.table.id"
"""Our own property: tells a table from another one that is created at the same address."""

_KEYGEN = "org.apache.hudi.keygen."
_SIMPLE, _COMPLEX, _NONE = (
    f"{_KEYGEN}{name}KeyGenerator" for name in ("Simple", "Complex", "Nonpartitioned")
)
_GENERATOR_TYPES = {_SIMPLE: "SIMPLE", _COMPLEX: "COMPLEX", _NONE: "NON_PARTITION", "": ""}
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True)
class HudiTable:
    """What `hoodie.properties` says about a table that Penstock writes."""

    table_id: str
    """Empty if another program has created the table."""
    name: str
    partition_by: tuple[str, ...]
    record_key: tuple[str, ...]
    """Empty: Hudi's readers get generated keys."""
    is_hive_style: bool
    """Partition directories are `column=value` instead of `value`."""
    encodes_paths: bool
    """Special characters in partition directories are percent-encoded."""
    is_utc: bool
    """Instants are in UTC; else in the time zone of the writer's machine."""
    create_schema: str
    """Avro schema; empty if unknown."""
    version: int
    layout: Layout


def parse(content: str) -> dict[str, str]:
    """Parse a Java properties file, as `java.util.Properties.store` writes it."""
    found = {}
    for line in content.splitlines():
        match = re.fullmatch(r"\s*((?:\\.|[^\\=:\s])+)\s*[=:\s]\s*(.*)", line)
        if match is not None and not line.lstrip().startswith(("#", "!")):
            found[_unescape(match[1])] = _unescape(match[2])
    return found


def _unescape(text: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPES.get(code, code)

    return re.sub(r"\\(u[0-9A-Fa-f]{4}|.)", replaced, text)


def _escape(text: str) -> str:
    escaped = re.sub(r"([\\=:#!])", r"\\\1", text)
    return "".join(char if " " <= char <= "~" else f"\\u{ord(char):04x}" for char in escaped)


def table_of(properties: Mapping[str, str], table_uri: str) -> HudiTable:
    """Check that Penstock can write the table.

    Raises:
        TableNotSupportedError: names everything that direct commits would violate.
    """
    problems = list(_problems(properties))
    if problems:
        raise TableNotSupportedError(
            f"Penstock cannot write the Hudi table {table_uri}:\n  - " + "\n  - ".join(problems) + "\n"
            "Nothing was written. Write this table with Hudi's own writer, or write another table."
        )
    return HudiTable(
        table_id=properties.get(ID, ""),
        name=properties.get("hoodie.table.name", ""),
        partition_by=names_in(properties.get("hoodie.table.partition.fields", "")),
        record_key=names_in(properties.get("hoodie.table.recordkey.fields", "")),
        is_hive_style=flag(properties, "hoodie.datasource.write.hive_style_partitioning"),
        encodes_paths=flag(properties, "hoodie.datasource.write.partitionpath.urlencode"),
        is_utc=properties.get("hoodie.table.timeline.timezone", "LOCAL").upper() == "UTC",
        create_schema=properties.get("hoodie.table.create.schema", ""),
        version=int(properties["hoodie.table.version"]),
        layout=layout_of(properties),
    )


def layout_of(properties: Mapping[str, str]) -> Layout:
    """Return the layout of the table's timeline."""
    if properties.get("hoodie.table.version") in (None, "6"):
        return Layout(META, f"{META}/{_folder(properties, 'hoodie.archivelog.folder', 'archived')}")
    folder = f"{META}/{_folder(properties, 'hoodie.timeline.path', 'timeline')}"
    history = _folder(properties, "hoodie.timeline.history.path", "history")
    return Layout(folder, f"{folder}/{history}", has_completion_times=True)


def _folder(properties: Mapping[str, str], key: str, default: str) -> str:
    folder = properties.get(key) or default
    if not is_relative(folder):
        raise TableNotSupportedError(
            f"Penstock cannot write a Hudi table with {key}={folder!r}, which is not a folder "
            "below the table's own. Nothing was written. Correct hoodie.properties."
        )
    return folder


LAYOUTS = (LAYOUT_1, layout_of({"hoodie.table.version": "8"}))
"""Layouts of tables with the folders that Hudi gives them."""


def _problems(properties: Mapping[str, str]) -> Iterator[str]:
    version = properties.get("hoodie.table.version", "")
    initial = properties.get("hoodie.table.initial.version", version)
    if version not in VERSIONS:
        yield (
            f"its table version is {version or 'unknown'}: Penstock writes versions 6, 8 and 9, which Hudi 1 "
            "writes with hoodie.write.table.version and hoodie.write.auto.upgrade=false"
        )
    elif initial != version:
        yield f"it was upgraded from table version {initial}"
    if version in ("8", "9") and (number := properties.get("hoodie.timeline.layout.version", "2")) != "2":
        yield f"the layout of its timeline is {number}, instead of 2"
    if (kind := properties.get("hoodie.table.type", "COPY_ON_WRITE")) != "COPY_ON_WRITE":
        yield f"it is a {kind} table: Penstock writes copy-on-write tables"
    if (file_format := properties.get("hoodie.table.base.file.format", "PARQUET").upper()) != "PARQUET":
        yield f"its base files are {file_format}"
    if (table_format := properties.get("hoodie.table.format", "native").lower()) != "native":
        yield f"its table format is {table_format} (hoodie.table.format)"
    lists = ("hoodie.table.metadata.partitions", "hoodie.table.metadata.partitions.inflight")
    indexes = [name for key in lists for name in names_in(properties.get(key, ""))]
    if indexes or flag(properties, "hoodie.metadata.enable"):
        has = f" with {', '.join(indexes)}" if indexes else ""
        record = "; the record-level index is part of it" if "record_index" in indexes else ""
        yield (
            f"it has a metadata table{has}{record}: readers would not find files that Penstock adds. Delete "
            "it, and write with hoodie.metadata.enable=false"
        )
    if not flag(properties, "hoodie.populate.meta.fields", "true"):
        yield "it has no record meta columns (hoodie.populate.meta.fields=false)"
    if flag(properties, "hoodie.table.cdc.enabled"):
        yield "it records changes (hoodie.table.cdc.enabled=true)"
    if flag(properties, "hoodie.datasource.write.drop.partition.columns"):
        yield "its files lack the partition columns (hoodie.datasource.write.drop.partition.columns=true)"
    if flag(properties, "hoodie.partition.metafile.use.base.format"):
        yield "its partition metadata files are Parquet (hoodie.partition.metafile.use.base.format=true)"
    if properties.get("hoodie.bootstrap.base.path"):
        yield "it is a bootstrapped table"
    if any(key.startswith("hoodie.bucket.index") for key in properties) or (
        "BUCKET" in properties.get("hoodie.index.type", "").upper()
    ):
        yield "it has a bucket index"
    yield from _key_generator_problems(properties)


def _key_generator_problems(properties: Mapping[str, str]) -> Iterator[str]:
    kind = key_generator(properties)
    keys = names_in(properties.get("hoodie.table.recordkey.fields", ""))
    partitions = names_in(properties.get("hoodie.table.partition.fields", ""))
    if kind not in ("SIMPLE", "COMPLEX", "NON_PARTITION", ""):
        yield f"its key generator is {kind}: Penstock knows Simple, Complex and Nonpartitioned"
    elif kind == "COMPLEX" and len(keys) == 1:
        yield (
            f"its key generator is Complex with the single record key {keys[0]!r}, which versions of Hudi "
            "encode differently"
        )
    elif kind == "SIMPLE" and (len(keys) > 1 or len(partitions) > 1):
        yield "its key generator is Simple, but it has several record keys or partition columns"
    if any(":" in name for name in partitions):
        yield f"its partitioning is {', '.join(partitions)}"


def key_generator(properties: Mapping[str, str]) -> str:
    """Return the type of the key generator, such as `SIMPLE`; empty: none is set."""
    generator = properties.get("hoodie.table.keygenerator.class", "")
    return properties.get(
        "hoodie.table.keygenerator.type", _GENERATOR_TYPES.get(generator, generator)
    ).upper()


def names_in(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def flag(properties: Mapping[str, str], name: str, default: str = "false") -> bool:
    return properties.get(name, default).strip().lower() == "true"


@dataclass(frozen=True, slots=True)
class NewHudiTable:
    """How to create a table that does not exist yet."""

    name: str
    partition_by: tuple[str, ...] = ()
    record_key: tuple[str, ...] = ()
    is_hive_style: bool = True
    version: int = 6


def render(new: NewHudiTable, create_schema: Record) -> str:
    """Return the properties of a new table."""
    values: dict[str, Any] = {
        "hoodie.table.name": new.name,
        "hoodie.table.type": "COPY_ON_WRITE",
        "hoodie.table.version": new.version,
        "hoodie.table.initial.version": new.version,
        **_versioned(new),
        "hoodie.table.timeline.timezone": "UTC",
        "hoodie.table.base.file.format": "PARQUET",
        "hoodie.archivelog.folder": "archived",
        "hoodie.populate.meta.fields": "true",
        "hoodie.table.cdc.enabled": "false",
        "hoodie.partition.metafile.use.base.format": "false",
        "hoodie.datasource.write.drop.partition.columns": "false",
        "hoodie.datasource.write.hive_style_partitioning": str(new.is_hive_style).lower(),
        "hoodie.datasource.write.partitionpath.urlencode": "true",
        "hoodie.table.partition.fields": ",".join(new.partition_by),
        "hoodie.table.recordkey.fields": ",".join(new.record_key),
        "hoodie.table.create.schema": json.dumps(create_schema, separators=(",", ":")),
        "hoodie.table.checksum": str(zlib.crc32(f".{new.name}".encode())),
        ID: str(uuid.uuid4()),
    }
    lines = [f"{key}={_escape(str(value))}" for key, value in values.items() if value != ""]
    return "\n".join(["#Properties of a table that Penstock has created", *lines, ""])


def _versioned(new: NewHudiTable) -> Mapping[str, str]:
    """Properties that differ between the versions of tables."""
    several = len(new.record_key) > 1 or len(new.partition_by) > 1
    generator = (_COMPLEX if several else _SIMPLE) if new.partition_by else _NONE
    if new.version == 6:
        return {"hoodie.timeline.layout.version": "1", "hoodie.table.keygenerator.class": generator}
    merging = {
        "hoodie.compaction.payload.class": "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload",
        "hoodie.record.merge.strategy.id": "ce9acb64-bde0-424c-9b91-f6ebba25356d",
    }
    return {
        "hoodie.timeline.layout.version": "2",
        "hoodie.timeline.path": "timeline",
        "hoodie.timeline.history.path": "history",
        "hoodie.table.keygenerator.type": _GENERATOR_TYPES[generator],
        "hoodie.record.merge.mode": "COMMIT_TIME_ORDERING",
        **(merging if new.version == 8 else {}),
    }


KEY_TYPES = (pa.string(), pa.int8(), pa.int16(), pa.int32(), pa.int64())
PARTITION_TYPES = (*KEY_TYPES, pa.bool_(), pa.date32())
