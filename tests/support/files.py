"""A folder of Parquet files, as the conformance suite needs it."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.datasource.files.sink import DESTINATION
from penstock.datasource.files.source import FilesDataSource
from penstock.testing.conformance import DestinationHarness, Lost, Promises
from penstock.testing.faults import lossy


class FilesHarness(DestinationHarness):
    """A folder, read by duckdb."""

    data_source = FilesDataSource
    destination = DESTINATION
    promises = Promises(
        name="Folders of Parquet files",
        payload="Parquet files in a staging folder beside the folder",
        commit="the journal of the query is replaced; then the files it lists are renamed one by one",
        token="a file for each query in the staging folder",
        overwrites=False,
        crash_points=("write.file_open", "write.files_closed", "commit.start", "commit.landed"),
    )

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "rows"
        self.staging = folder / ".rows.penstock"

    @property
    def options(self) -> dict[str, str]:
        return {"path": str(self.folder)}

    @property
    def secret_options(self) -> dict[str, str]:
        return {}

    @property
    def small_buffer(self) -> Mapping[str, str]:
        return {"bufferSize": "4mb"}

    def ids(self) -> list[int]:
        if not list(self.folder.rglob("*.parquet")):
            return []
        return [
            row[0]
            for row in duckdb.sql(
                f"SELECT id FROM read_parquet('{self.folder}/**/*.parquet', union_by_name = true)"
            ).fetchall()
        ]

    def uncommitted(self) -> Collection[str]:
        return {str(path.relative_to(self.staging)) for path in self.staging.rglob("*.parquet")}

    def losing(self, lost: Lost) -> AbstractContextManager[None]:
        return lossy(Path, "replace", lost, OSError("the connection was lost"))

    def delete_uncommitted(self) -> None:
        for name in self.uncommitted():
            (self.staging / name).unlink()

    def append(self, row_id: int) -> None:
        rows = pa.table({"id": pa.array([row_id], pa.int64())})
        pq.write_table(rows, self.folder / f"others-{row_id}.parquet")

    def drop(self) -> None:
        shutil.rmtree(self.folder)
        shutil.rmtree(self.staging)
