"""Iceberg tables that Java wrote, from tests/fixtures/iceberg, as tables of an embedded catalog.

The metadata of Iceberg has absolute paths: a copy of a table gets the paths of its new folder, in the JSON,
in the Avro of manifests and lists of manifests, and in files of position deletes. Nothing else changes:
schemas, partition values and statistics stay as Java wrote them.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.avro.file import AvroFile, AvroOutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import StaticTable, Table
from pyiceberg.typedef import Record
from pyiceberg.types import StructType
from tests.support.lakes import IcebergLake

ARCHIVES = Path(__file__).parents[1] / "fixtures" / "iceberg"
NAMES = sorted(archive.name.removesuffix(".tar.gz") for archive in ARCHIVES.glob("*.tar.gz"))
NAMESPACE = "foreign"


class PartitionRow(NamedTuple):
    """A row of a data file, and the partition that Java put it into."""

    row: dict[str, Any]
    partition: tuple[Any, ...]
    spec_id: int


def load(name: str, warehouse: Path) -> Table:
    """The table `foreign.<name>` of the embedded catalog in this folder, ready to be written to.

    The catalog is the one that `penstock.iceberg` finds by this warehouse.
    """
    catalog = IcebergLake(warehouse).sql_catalog
    catalog.create_namespace_if_not_exists(NAMESPACE)
    return catalog.register_table(f"{NAMESPACE}.{name}", unpack(name, warehouse / NAMESPACE / name))


def unpack(name: str, folder: Path) -> str:
    """A copy of the table in this folder, in no catalog; the location of its newest metadata."""
    with tarfile.open(ARCHIVES / f"{name}.tar.gz") as tar:
        tar.extractall(folder, filter="data")
    newest = max((folder / "metadata").glob("*.metadata.json"))
    move = _Move(StaticTable.from_metadata(str(newest)).location(), f"file://{folder}")
    for file in folder.rglob("*-deletes.parquet"):
        move.position_deletes(file)
    lists = set((folder / "metadata").glob("snap-*.avro"))
    for file in set((folder / "metadata").glob("*.avro")) - lists:
        move.manifest(file)
    for file in lists:
        move.manifest_list(file)
    for file in (folder / "metadata").glob("*.json"):
        move.json(file)
    return f"{move.new}/metadata/{newest.name}"


def partition_rows(table: Table) -> list[PartitionRow]:
    """Each row of the live data files, deleted or not, with the partition of its file.

    Values of partitions are what Avro holds: dates and timestamps as integers, decimals as Decimal.
    """
    return [
        PartitionRow(row, tuple(file.partition[at] for at in range(len(file.partition))), file.spec_id)
        for file in data_files(table)
        for row in _rows(file)
    ]


def data_files(table: Table) -> list[DataFile]:
    """The data files of the current snapshot, with the partitions and statistics that Java wrote."""
    snapshot = table.current_snapshot()
    with exact_doubles():
        return [
            entry.data_file
            for manifest in (snapshot.manifests(table.io) if snapshot else [])
            for entry in manifest.fetch_manifest_entry(table.io)
            if entry.data_file.content == DataFileContent.DATA
        ]


def exact_doubles() -> AbstractContextManager[object]:
    """The compiled Avro decoder of pyiceberg 0.12.0 reads doubles as floats; the one in Python does not."""
    return mock.patch("pyiceberg.avro.file.new_decoder", StreamingBinaryDecoder)


def _rows(file: DataFile) -> list[dict[str, Any]]:
    return pq.read_table(file.file_path.removeprefix("file://"), partitioning=None).to_pylist()


class _Move:
    """Replaces the folder of a table in its files. Files that hold the sizes of others come after those."""

    def __init__(self, old: str, new: str) -> None:
        self.new = new
        self._old = "(?:file:(?://)?)?" + re.escape(old)
        self._sizes: dict[str, int] = {}

    def json(self, file: Path) -> None:
        file.write_text(self._value(file.read_text("utf-8")), "utf-8")

    def position_deletes(self, file: Path) -> None:
        rows = pq.read_table(file, partitioning=None)
        at = rows.schema.get_field_index("file_path")
        paths = pa.array(self._value(rows["file_path"].to_pylist()), pa.string())
        pq.write_table(rows.set_column(at, rows.schema.field(at), paths), file)
        self._sizes[file.name] = file.stat().st_size

    def manifest(self, file: Path) -> None:
        def resize(entry: Record, fields: StructType) -> None:
            at = _position(fields, "data_file")
            data_file = fields.fields[at].field_type
            assert isinstance(data_file, StructType)
            self._resize(entry[at], data_file, "file_path", "file_size_in_bytes")

        self._avro(file, "manifest_entry", resize)
        self._sizes[file.name] = file.stat().st_size

    def manifest_list(self, file: Path) -> None:
        def resize(manifest: Record, fields: StructType) -> None:
            self._resize(manifest, fields, "manifest_path", "manifest_length")

        self._avro(file, "manifest_file", resize)

    def _avro(self, file: Path, name: str, resize: Callable[[Record, StructType], None]) -> None:
        io = PyArrowFileIO()
        with exact_doubles(), AvroFile[Record](io.new_input(str(file))) as source:
            records = [self._value(record) for record in source]
            schema, header = source.schema, source.header.meta
        for record in records:
            resize(record, schema.as_struct())
        with AvroOutputFile[Record](io.new_output(str(file)), schema, name, metadata=header) as target:
            target.write_block(records)

    def _resize(self, record: Record, fields: StructType, path: str, size: str) -> None:
        file = record[_position(fields, path)].rpartition("/")[2]
        if file in self._sizes:
            record[_position(fields, size)] = self._sizes[file]

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return re.sub(self._old, self.new, value)
        if isinstance(value, bytes):  # such as a bound of the paths in a file of position deletes
            return re.sub(self._old.encode(), self.new.encode(), value)
        if isinstance(value, Record):
            return Record(*(self._value(value[at]) for at in range(len(value))))
        if isinstance(value, Mapping):
            return {key: self._value(value[key]) for key in value}
        if isinstance(value, list):
            return [self._value(item) for item in value]
        return value


def _position(fields: StructType, name: str) -> int:
    return [field.name for field in fields.fields].index(name)
