"""One table of each format in a folder of its own: how a stream writes it, how it looks on disk, and what
other writers do to it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from tests.tables import DeltaOnDisk, IcebergOnDisk, TableOnDisk

from penstock.committers.iceberg.catalog import CatalogConfig, open_catalog
from penstock.datasource.delta.options import DeltaOptions
from penstock.datasource.delta.sink import DeltaSink
from penstock.datasource.file_table import FileTableSink
from penstock.datasource.iceberg.options import IcebergOptions
from penstock.datasource.iceberg.sink import IcebergSink


class LakeTable(Protocol):
    """One table that one query writes, and others too."""

    @property
    def notices_vacuums(self) -> bool:
        """Does a commit see that others have deleted uncommitted files since the batch was prepared?"""
        ...

    def sink(self, *, evolve: bool = False) -> FileTableSink: ...

    @property
    def on_disk(self) -> TableOnDisk: ...

    @property
    def data_folder(self) -> Path:
        """What the paths of data files are relative to."""
        ...

    @property
    def exists(self) -> bool: ...

    def version(self) -> int:
        """Of the table; the snapshot in Iceberg."""
        ...

    def count(self) -> int: ...

    # What others do

    def append(self, row_id: int) -> None: ...

    def compact(self) -> None:
        """Put all rows into one file."""
        ...

    def vacuum(self, *, orphans: bool = True) -> None:
        """Delete what the table's newest version does not need.

        Args:
            orphans: also files that no version of the table has named yet
        """
        ...

    def partition_by_day(self) -> None:
        """And put in a row with id -1: no file that was written before fits the table any more."""
        ...

    def drop(self) -> None: ...

    def forget(self) -> None:
        """Drop the table; its data files stay."""
        ...

    def replace(self) -> None:
        """Another table in the same place, with a row with id -1. The old one's data files stay."""
        ...

    def go_back(self, version: int) -> None:
        """RESTORE in Delta, a rollback in Iceberg."""
        ...


@dataclass(frozen=True)
class DeltaLake:
    """See `LakeTable`."""

    folder: Path
    notices_vacuums: bool = True

    @property
    def table(self) -> Path:
        return self.folder / "table"

    def sink(self, *, evolve: bool = False) -> DeltaSink:
        return DeltaSink(DeltaOptions(path=str(self.table), add_columns=evolve))

    @property
    def on_disk(self) -> DeltaOnDisk:
        return DeltaOnDisk(self.table)

    @property
    def data_folder(self) -> Path:
        return self.table

    @property
    def exists(self) -> bool:
        return (self.table / "_delta_log").exists()

    def version(self) -> int:
        return self.load().version()

    def count(self) -> int:
        return self.load().count()

    def load(self) -> DeltaTable:
        return DeltaTable(str(self.table))

    def append(self, row_id: int) -> None:
        write_deltalake(str(self.table), pa.table({"id": [row_id]}), mode="append")

    def compact(self) -> None:
        self.load().optimize.compact()

    def vacuum(self, *, orphans: bool = True) -> None:
        self.load().vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=orphans)

    def partition_by_day(self) -> None:
        rows = pa.table({"id": [-1], "day": ["d"]})
        write_deltalake(
            str(self.table), rows, mode="overwrite", schema_mode="overwrite", partition_by=["day"]
        )

    def drop(self) -> None:
        shutil.rmtree(self.table)

    def forget(self) -> None:
        shutil.rmtree(self.table / "_delta_log")

    def replace(self) -> None:
        if self.exists:
            self.forget()
        write_deltalake(str(self.table), pa.table({"id": [-1]}))

    def go_back(self, version: int) -> None:
        self.load().restore(version)


@dataclass(frozen=True)
class IcebergLake:
    """See `LakeTable`. Others write it through pyiceberg itself."""

    folder: Path
    branch: str = "main"
    notices_vacuums: bool = False
    name: str = "lake.ids"

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    def sink(self, *, evolve: bool = False) -> IcebergSink:
        options = IcebergOptions(
            warehouse=str(self.warehouse), table=self.name, branch=self.branch, add_columns=evolve
        )
        return IcebergSink(options)

    @property
    def on_disk(self) -> IcebergOnDisk:
        return IcebergOnDisk(self.warehouse, self.name, self.branch)

    @property
    def data_folder(self) -> Path:
        return self.on_disk.folder / "data"

    @property
    def exists(self) -> bool:
        return self.on_disk.exists

    def version(self) -> int:
        head = self.load().metadata.snapshot_by_name(self.branch)
        return -1 if head is None else head.snapshot_id

    def count(self) -> int:
        return int(self.load().scan().to_arrow().num_rows)

    @property
    def catalog(self) -> Catalog:
        return open_catalog(CatalogConfig.of(None, {}, str(self.warehouse)))

    def load(self) -> Table:
        return self.catalog.load_table(self.name)

    def append(self, row_id: int) -> None:
        table = self.load()
        table.append(self._rows(table, row_id), branch=self.branch)

    def _rows(self, table: Table, row_id: int) -> pa.Table:
        schema = table.schema().as_arrow()
        columns = [pa.array([row_id]) if f.name == "id" else pa.nulls(1, f.type) for f in schema]
        return pa.table(columns, schema=schema)

    def compact(self) -> None:
        table = self.load()
        rows = table.scan().to_arrow()
        if rows.num_rows:
            table.overwrite(rows, branch=self.branch)

    def vacuum(self, *, orphans: bool = True) -> None:
        before = set(named_files(self.load()))
        self.expire()
        kept = set(named_files(self.load()))
        deleted = (before - kept) | (self._files() - kept if orphans else set())
        for path in deleted:
            Path(path.removeprefix("file://")).unlink(missing_ok=True)

    def _files(self) -> set[str]:
        """Of all kinds but the JSON."""
        folder = self.on_disk.folder
        return {f"file://{path}" for end in ("avro", "parquet") for path in folder.rglob(f"*.{end}")}

    def expire(self) -> None:
        """All snapshots but the heads of branches."""
        table = self.load()
        heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
        old = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in heads]
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()

    def partition_by_day(self) -> None:
        table = self.load()
        with table.update_spec() as update:
            update.add_identity("day")
        self._empty(table)
        table.append(pa.table({"id": [-1], "day": ["d"]}))

    def _empty(self, table: Table) -> None:
        if table.current_snapshot() is not None:
            table.delete()

    def drop(self) -> None:
        self.catalog.drop_table(self.name)
        shutil.rmtree(self.on_disk.folder)

    def forget(self) -> None:
        self.catalog.drop_table(self.name)

    def replace(self) -> None:
        if self.exists:
            self.forget()
        rows = pa.table({"id": [-1]})
        self.catalog.create_table(self.name, rows.schema).append(rows)

    def go_back(self, version: int) -> None:
        self.load().manage_snapshots().rollback_to_snapshot(version).commit()


def named_files(table: Table) -> Iterator[str]:
    """All files that any snapshot of the table needs."""
    for snapshot in table.metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            yield manifest.manifest_path
            for entry in manifest.fetch_manifest_entry(table.io):
                yield entry.data_file.file_path


LAKES: dict[str, Callable[[Path], LakeTable]] = {"delta": DeltaLake, "iceberg": IcebergLake}
"""A table of each kind in a folder."""
