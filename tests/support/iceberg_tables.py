"""Iceberg tables in an embedded catalog of their own, for tests of planning."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _DeleteFiles
from pyiceberg.typedef import Record
from tests.support.lakes import ids_alone

from penstock.committers.file_tables.evolution import ADD_COLUMNS, NO_EVOLUTION
from penstock.committers.iceberg.address import IcebergAddress
from penstock.committers.iceberg.arrow import FIELD_ID_KEY, arrow_schema
from penstock.committers.iceberg.catalog import CatalogConfig, open_catalog
from penstock.committers.iceberg.new_table import NewIcebergTable, open_or_create
from penstock.committers.iceberg.plan import plan_target
from penstock.committers.iceberg.target import IcebergTableLayout
from penstock.committers.iceberg.terms import parse_partition_spec, parse_sort_order

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("ts", pa.timestamp("us", "UTC"))])


@dataclass(frozen=True)
class Tables:
    """The tables of one catalog."""

    config: CatalogConfig

    def address(self, name: str = "db.t", branch: str = "main") -> IcebergAddress:
        return IcebergAddress(self.config.address_name, tuple(name.split(".")), branch)

    def create(
        self,
        source: pa.Schema = SCHEMA,
        *,
        name: str = "db.t",
        allowed: bool = True,
        spec: str | None = None,
        order: str | None = None,
        version: int | None = None,
        properties: dict[str, str] | None = None,
    ) -> tuple[Table, bool]:
        new = NewIcebergTable(
            allowed,
            None if spec is None else parse_partition_spec(spec),
            None if order is None else parse_sort_order(order),
            version,
            properties or {},
        )
        return open_or_create(self.config, self.address(name), source, new, 0)

    def load(self, name: str = "db.t") -> Table:
        return open_catalog(self.config).load_table(name)

    def plan(self, source: pa.Schema, *, evolve: bool = False, branch: str = "main") -> IcebergTableLayout:
        evolution = ADD_COLUMNS if evolve else NO_EVOLUTION
        return plan_target(self.load(), source, branch, evolution=evolution, created=False)

    def append(self, ids: list[int], *, name: str = "db.t", partition: Record | None = None) -> None:
        """A data file with these ids, and nothing else, committed by pyiceberg's own snapshot producer."""
        table = self.load(name)
        file = data_file(table, ids, partition or Record())
        with table.transaction() as transaction, transaction.update_snapshot().merge_append() as snapshot:
            snapshot.append_data_file(file)


def data_file(table: Table, ids: list[int], partition: Record) -> DataFile:
    path = f"{table.location()}/data/{len(table.metadata.snapshots)}-{ids[0]}.parquet"
    local = Path(path.removeprefix("file://"))
    local.parent.mkdir(exist_ok=True)
    pq.write_table(ids_alone(arrow_schema(table.schema()), ids), local)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=len(ids),
        file_size_in_bytes=local.stat().st_size,
    )
    file.spec_id = table.metadata.default_spec_id
    return file


def tables_in(folder: Path) -> Tables:
    return Tables(CatalogConfig.of(None, {}, str(folder / "lake")))


def with_properties(table: Table, properties: dict[str, str]) -> Table:
    """The table as if others had set these properties."""
    metadata = table.metadata.model_copy(update={"properties": {**table.properties, **properties}})
    return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog)


def overwrite(table: Table, ids: list[int], partition: Record) -> None:
    """All rows replaced in one snapshot."""
    with table.transaction() as transaction:
        producer = _DeleteFiles(
            operation=Operation.OVERWRITE, transaction=transaction, io=table.io, branch="main"
        )
        producer.delete_by_predicate(AlwaysTrue())
        producer.append_data_file(data_file(table, ids, partition))
        producer.commit()


def field_ids(fields: Iterable[pa.Field]) -> dict[str, object]:
    """Field ids by name, nested; read from the Arrow schema. Readers of Parquet name elements differently."""
    found: dict[str, object] = {}
    for column in fields:
        own = int((column.metadata or {})[FIELD_ID_KEY])
        kind = column.type
        if pa.types.is_struct(kind):
            found[column.name] = (own, field_ids(kind))
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            found[column.name] = (own, field_ids([kind.value_field.with_name("element")]))
        elif pa.types.is_map(kind):
            found[column.name] = (own, field_ids([kind.key_field, kind.item_field]))
        else:
            found[column.name] = own
    return found
