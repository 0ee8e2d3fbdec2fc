"""A Paimon table on the local disk for tests, written by other programs too, and read without pypaimon."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from tests.support.harness import CRASH_POINTS, FileTableHarness

from penstock.committers.paimon.committer import PaimonTableCommitter
from penstock.committers.paimon.folder import TableFolder
from penstock.committers.paimon.table import PaimonTable
from penstock.datasource.paimon.sink import DESTINATION
from penstock.testing.conformance import Lost, Promises
from penstock.testing.conformance.harness import ChangedRow
from penstock.testing.faults import lossy

IDS = pa.schema([("id", pa.int64())])


class PaimonHarness(FileTableHarness):
    """Manifests are read as plain Avro, and data files by duckdb."""

    destination = DESTINATION
    promises = Promises(
        name="Paimon tables",
        payload="data files in the table's folder, which no snapshot lists",
        commit="the next snapshot: a file created by a hard link, or the request to the REST catalog",
        token="commit user, identifier and properties of the same snapshot",
        changes="adds the new rows, with greater sequence numbers, and deletions; readers merge them by key",
        moves_keys=False,
        adds_columns=False,
        narrows=True,
        quarantines=True,
        reserved_columns=("_SEQUENCE_NUMBER", "rowkind", "_KEY_id", "__paimon_file_path"),
        crash_points=CRASH_POINTS,
    )

    def __init__(self, folder: Path) -> None:
        self.warehouse = folder / "warehouse"
        self.name = "lake.rows"
        self.path = self.warehouse / "lake.db" / "rows"

    def in_catalog(self) -> PaimonTable:
        """The table, for a committer."""
        return TableFolder(str(self.path))

    @property
    def new_committer(self) -> Callable[[], PaimonTableCommitter]:
        """Makes a committer in any process."""
        return partial(PaimonTableCommitter, self.in_catalog())

    @property
    def options(self) -> dict[str, str]:
        return {"path": str(self.path)}

    # Without pypaimon -------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        return (self.path / "schema" / "schema-0").exists()

    def snapshots(self) -> dict[int, dict[str, Any]]:
        files = self.path.glob("snapshot/snapshot-*")
        found = [json.loads(file.read_text()) for file in files]
        return {one["id"]: one for one in sorted(found, key=lambda one: int(one["id"]))}

    def listed(self, snapshot: Mapping[str, Any]) -> list[str]:
        """The names of the data files in a snapshot, each as often as it is added."""
        added: list[str] = []
        for name in (snapshot["baseManifestList"], snapshot["deltaManifestList"]):
            for manifest in self._avro(name):
                for entry in self._avro(manifest["_FILE_NAME"]):
                    file = entry["_FILE"]["_FILE_NAME"]
                    if entry["_KIND"] == 0:
                        added.append(file)
                    else:
                        added.remove(file)
        return added

    def committed(self) -> list[str]:
        snapshots = self.snapshots()
        return self.listed(snapshots[max(snapshots)]) if snapshots else []

    def data_files(self) -> dict[str, Path]:
        return {path.name: path for path in self.path.rglob("bucket-*/*.parquet")}

    def rows(self, columns: str = "*") -> list[tuple[Any, ...]]:
        """The rows of the newest snapshot, merged if the table has a primary key."""
        files, names = self.data_files(), self.committed()
        if not names:
            return []
        paths = [str(files[name]) for name in names]
        relation = "read_parquet(?, union_by_name = true, hive_partitioning = false)"
        schema = self.schema()
        if schema["primaryKeys"]:
            fields = [one for one in schema["options"].get("sequence.field", "").split(",") if one]
            order = ", ".join(f'"{one}" DESC NULLS LAST' for one in [*fields, "_SEQUENCE_NUMBER"])
            keys = ", ".join(f'"{one}"' for one in schema["primaryKeys"])
            number = f"row_number() OVER (PARTITION BY {keys} ORDER BY {order}) AS _place"
            relation = f"(SELECT *, {number} FROM {relation}) WHERE _place = 1 AND _VALUE_KIND <> 3"
        return duckdb.execute(f"SELECT {columns} FROM {relation}", [paths]).fetchall()

    def schema(self) -> dict[str, Any]:
        """The newest one."""
        files = sorted(self.path.glob("schema/schema-*"), key=lambda path: int(path.name[7:]))
        found: dict[str, Any] = json.loads(files[-1].read_text())
        return found

    def read(self) -> pa.Table:
        """Read by pypaimon."""
        builder = self.table().new_read_builder()
        return builder.new_read().to_arrow(builder.new_scan().plan().splits())

    def changed_rows(self) -> Sequence[ChangedRow]:
        """Merged here, and by pypaimon."""
        found = self.rows("id, n, text")
        if self.exists:
            rows = self.read().to_pylist()
            assert sorted(((one["id"], one["n"], one["text"]) for one in rows), key=str) == sorted(
                found, key=str
            )
        return found

    def options_by(self, column: str) -> Mapping[str, str]:
        return {"partitionBy": column}

    def ids(self) -> list[int]:
        return [row[0] for row in self.rows("id")]

    def uncommitted(self) -> Collection[str]:
        listed = {name for snapshot in self.snapshots().values() for name in self.listed(snapshot)}
        return {*self.data_files(), *(path.name for path in self.path.glob("_penstock/*.parquet"))} - listed

    def problems(self) -> list[str]:
        """No file referenced twice, none missing, rows as many as the snapshot says, no gap in the ids."""
        names, snapshots = self.committed(), self.snapshots()
        if not snapshots:
            return []
        problems = [f"listed twice: {name}" for name in set(names) if names.count(name) > 1]
        problems += [f"missing: {name}" for name in set(names) - set(self.data_files())]
        files = self.data_files()
        stored = sum(pq.read_metadata(files[name]).num_rows for name in names if name in files)
        if stored != snapshots[max(snapshots)]["totalRecordCount"]:
            problems.append("the snapshot counts other rows than there are")
        return problems

    def orphan_manifests(self) -> list[str]:
        """Manifests, and lists of them, that no snapshot needs."""
        needed = set()
        for snapshot in self.snapshots().values():
            for name in (snapshot["baseManifestList"], snapshot["deltaManifestList"]):
                needed |= {name, *(manifest["_FILE_NAME"] for manifest in self._avro(name))}
        return sorted({path.name for path in self.path.glob("manifest/*")} - needed)

    def _avro(self, name: str) -> list[dict[str, Any]]:
        with (self.path / "manifest" / name).open("rb") as file:
            return list(fastavro.reader(file))  # type: ignore[arg-type]

    # What breaks ------------------------------------------------------------------------------------

    def losing(self, lost: Lost) -> AbstractContextManager[None]:
        return _lossy_snapshot(lost)

    def delete_uncommitted(self) -> None:
        files = {**self.data_files(), **{path.name: path for path in self.path.glob("_penstock/*.parquet")}}
        for name in self.uncommitted():
            files[name].unlink()

    # What others do, with pypaimon --------------------------------------------------------------------

    def catalog(self) -> Any:
        from pypaimon import CatalogFactory

        return CatalogFactory.create({"warehouse": str(self.warehouse)})

    def table(self) -> Any:
        return self.catalog().get_table(self.name)

    def create(
        self,
        columns: pa.Schema,
        properties: Mapping[str, str] | None = None,
        partition_by: Sequence[str] = (),
        primary_keys: Sequence[str] = (),
    ) -> None:
        from pypaimon import Schema

        catalog = self.catalog()
        catalog.create_database(self.name.partition(".")[0], True)
        schema = Schema.from_pyarrow_schema(
            columns, list(partition_by), list(primary_keys), dict(properties or {})
        )
        catalog.create_table(self.name, schema, False)

    def append(self, row_id: int) -> None:
        self.append_rows(pa.table({"id": [row_id]}, schema=IDS))

    def write(self, rows: Sequence[tuple[Any, ...]], after: int | None = None) -> None:
        """Add rows (id, n, text) as another writer.

        Args:
            after: the sequence number that it believes to be the greatest one; None: it looks
        """
        from pypaimon.write.file_store_write import FileStoreWrite

        columns = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("text", pa.string())])
        table = pa.Table.from_pylist([dict(zip(columns.names, row, strict=True)) for row in rows], columns)
        if after is None:
            self.append_rows(table)
            return
        greatest = dict.fromkeys(range(100), after)
        with mock.patch.object(FileStoreWrite, "_load_seq_number_stats", return_value=greatest):
            self.append_rows(table)

    def forget_deletions(self) -> None:
        """Write the rows that readers see again in place of all others, without a trace of the others."""
        rows, builder = self.read(), self.table().new_batch_write_builder().overwrite()
        write, commit = builder.new_write(), builder.new_commit()
        write.write_arrow(rows)
        commit.commit(write.prepare_commit())
        write.close()
        commit.close()

    def append_rows(self, rows: pa.Table) -> None:
        from pypaimon.schema.data_types import PyarrowFieldParser

        table = self.table()
        schema = PyarrowFieldParser.from_paimon_schema(table.fields)
        columns = [
            rows[field.name].cast(field.type)
            if field.name in rows.column_names
            else pa.nulls(len(rows), field.type)
            for field in schema
        ]
        builder = table.new_batch_write_builder()
        write, commit = builder.new_write(), builder.new_commit()
        write.write_arrow(pa.Table.from_arrays(columns, schema=schema))
        commit.commit(write.prepare_commit())
        write.close()
        commit.close()

    def expire(self, kept: int = 1) -> None:
        """Delete the files of all snapshots but the newest ones, as an expiry of Paimon does."""
        ids = sorted(self.snapshots())
        for snapshot_id in ids[:-kept]:
            (self.path / "snapshot" / f"snapshot-{snapshot_id}").unlink()
        (self.path / "snapshot" / "EARLIEST").write_text(str(ids[-kept]))

    def drop(self) -> None:
        shutil.rmtree(self.path)

    def recreate(self) -> None:
        self.drop()
        self.create(IDS)

    def roll_back(self) -> None:
        self.table().rollback_to(max(self.snapshots()) - 1)


@contextmanager
def _lossy_snapshot(lost: Lost) -> Iterator[None]:
    """Lose the creation of a snapshot. Other links pass."""
    real = os.link

    class Snapshots:
        link = staticmethod(real)

    def link(source: Path, target: Path) -> None:
        (Snapshots.link if target.name.startswith("snapshot-") else real)(source, target)

    with (
        mock.patch.object(os, "link", link),
        lossy(Snapshots, "link", lost, OSError("the disk was lost")),
    ):
        yield
