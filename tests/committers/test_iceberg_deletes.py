"""Row-level deletes of other engines: appends leave them alone, and they never reach rows added later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record
from tests.committers.iceberg_tables import Tables, overwrite, tables_in
from tests.readers import iceberg_rows

from penstock.committers.iceberg.checks import check_supported


class _DeleteManifestWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _AddDeletes(_FastAppendFiles):
    """pyiceberg writes no delete files itself."""

    deletes: DataFile

    def _manifests(self) -> list[ManifestFile]:
        output = self.new_manifest_output()
        with _DeleteManifestWriter(
            self.spec(0), self.schema(), output, self._snapshot_id, "deflate"
        ) as writer:
            writer.add(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=self._snapshot_id,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=self.deletes,
                )
            )
        return [writer.to_manifest_file(), *self._existing_manifests()]


def _delete(tables: Tables, content: DataFileContent, rows: pa.Table, ids: list[int] | None = None) -> None:
    table = tables.load()
    path = f"{table.location()}/data/{content.name}.parquet"
    pq.write_table(rows, path.removeprefix("file://"))
    deletes: Any = DataFile.from_args(
        content=content,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows.num_rows,
        file_size_in_bytes=Path(path.removeprefix("file://")).stat().st_size,
        equality_ids=ids,
    )
    deletes.spec_id = 0
    with table.transaction() as transaction:
        producer = _AddDeletes(operation=Operation.DELETE, transaction=transaction, io=table.io)
        producer.deletes = deletes
        producer.commit()


def _column(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(field_id)})


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """Rows 1, 2 and 3, of which 1 is deleted by position and 2 by value."""
    tables = tables_in(tmp_path)
    tables.create()
    tables.append([1, 2, 3])
    (task,) = tables.load().scan().plan_files()
    positions = pa.schema(
        [_column("file_path", pa.string(), 2147483546), _column("pos", pa.int64(), 2147483545)]
    )
    _delete(
        tables,
        DataFileContent.POSITION_DELETES,
        pa.table({"file_path": [task.file.file_path], "pos": [0]}, schema=positions),
    )
    values = pa.schema([_column("id", pa.int64(), 1)])
    _delete(tables, DataFileContent.EQUALITY_DELETES, pa.table({"id": [2]}, schema=values), [1])
    assert iceberg_rows(tables.load().metadata_location, "id") == [(3,)]
    return tables


def test_appended_rows_are_not_reached_by_deletes_made_before(tables: Tables) -> None:
    check_supported(tables.load(), overwrite=False)
    tables.append([1, 2])
    assert iceberg_rows(tables.load().metadata_location, "id") == [(1,), (2,), (3,)]


def test_an_overwrite_leaves_only_the_new_rows(tables: Tables) -> None:
    """The delete files stay in the metadata, about nothing any more, until the table is compacted."""
    check_supported(tables.load(), overwrite=True)
    overwrite(tables.load(), [2, 9], Record())
    assert iceberg_rows(tables.load().metadata_location, "id") == [(2,), (9,)]
