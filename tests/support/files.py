"""A folder of files, as the conformance suite needs it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc
from tests.support.harness import FileTableHarness

from penstock.datasource.files.sink import DESTINATION
from penstock.testing.conformance import Lost, Promises
from penstock.testing.duckdb_reader import connect, load_extensions
from penstock.testing.faults import lossy

CSV = r"""header = true, quote = '"', escape = '"', nullstr = '\N', union_by_name = true"""
"""How DuckDB reads the CSV files of Penstock."""


def _by_duckdb(function: str, options: str = "union_by_name = true") -> Callable[[list[str]], list[int]]:
    query = f"SELECT id FROM {function}(?, {options})"
    return lambda paths: [row[0] for row in duckdb.execute(query, [paths]).fetchall()]


def _ids_of_avro(paths: list[str]) -> list[int]:
    with connect() as connection:
        load_extensions(connection, "avro")
        found = [connection.execute(f"SELECT id FROM read_avro('{path}')").fetchall() for path in paths]
    return [row[0] for rows in found for row in rows]


READ_IDS: Mapping[str, Callable[[list[str]], list[int]]] = {
    "parquet": _by_duckdb("read_parquet"),
    "json": _by_duckdb("read_ndjson"),
    "csv": _by_duckdb("read_csv", CSV),
    "avro": _ids_of_avro,
    "orc": lambda paths: [row for path in paths for row in orc.read_table(path)["id"].to_pylist()],
}


def _avro_types(path: Path) -> dict[str, str]:
    with path.open("rb") as file:
        schema: Any = fastavro.reader(file).writer_schema
        return {field["name"]: str(field["type"]) for field in schema["fields"]}


TYPES: Mapping[str, Callable[[Path], dict[str, str]]] = {
    "parquet": lambda path: {field.name: str(field.type) for field in pq.read_schema(path)},
    "orc": lambda path: {field.name: str(field.type) for field in orc.ORCFile(path).schema},
    "avro": _avro_types,
    "json": lambda _: {},
    "csv": lambda _: {},
}
"""How the types of the columns in a file are read. JSON and CSV have none."""


class FilesHarness(FileTableHarness):
    """A folder, read by DuckDB, and ORC files by Arrow: they have no other reader."""

    destination = DESTINATION
    promises = Promises(
        name="Folders of files",
        payload="data files in a staging folder beside the folder",
        commit="the journal of the query is replaced; then the files it lists are renamed one by one",
        token="a file for each query in the staging folder",
        overwrites=False,
        narrows=True,
        crash_points=("write.file_open", "write.files_closed", "commit.start", "commit.landed"),
    )

    file_format = "parquet"

    def __init__(self, folder: Path, file_format: str | None = None) -> None:
        self.folder = folder / "rows"
        self.staging = folder / ".rows.penstock"
        self.file_format = file_format or self.file_format

    @property
    def options(self) -> dict[str, str]:
        return {"path": str(self.folder), "fileFormat": self.file_format}

    def options_by(self, column: str) -> Mapping[str, str]:
        return {"partitionBy": column}

    def ids(self) -> list[int]:
        paths = [str(path) for path in self.folder.rglob(f"*.{self.file_format}")]
        return READ_IDS[self.file_format](paths) if paths else []

    def uncommitted(self) -> Collection[str]:
        return {str(path.relative_to(self.staging)) for path in self.staging.rglob("penstock-*.*")}

    def problems(self) -> list[str]:
        """No column has another type in one file than in another."""
        paths = self.folder.rglob(f"*.{self.file_format}")
        types_of = TYPES[self.file_format]
        types = {column for path in paths for column in types_of(path).items()}
        count = Counter(name for name, _ in types)
        return [f"{name} has {number} types" for name, number in count.items() if number > 1]

    def losing(self, lost: Lost) -> AbstractContextManager[None]:
        return lossy(Path, "replace", lost, OSError("the connection was lost"))

    def delete_uncommitted(self) -> None:
        for name in self.uncommitted():
            (self.staging / name).unlink()

    def append(self, row_id: int) -> None:
        path = self.folder / f"others-{row_id}.{self.file_format}"
        rows = pa.table({"id": pa.array([row_id], pa.int64())})
        if self.file_format == "parquet":
            pq.write_table(rows, path)
        elif self.file_format == "orc":
            orc.write_table(rows, path)
        elif self.file_format == "avro":
            fields = [{"name": "id", "type": ["null", "long"]}]
            with path.open("wb") as file:
                fastavro.writer(file, {"type": "record", "name": "row", "fields": fields}, rows.to_pylist())
        else:
            path.write_text(f'{{"id":{row_id}}}\n' if self.file_format == "json" else f"id\n{row_id}\n")

    def drop(self) -> None:
        shutil.rmtree(self.folder)
        shutil.rmtree(self.staging)


class JsonHarness(FilesHarness):
    """JSON has no types of numbers."""

    promises = replace(FilesHarness.promises, narrows=False, reserved_columns=("_corrupt_record",))
    file_format = "json"


class CsvHarness(FilesHarness):
    """CSV has no types, and readers take the columns of all files by their position."""

    promises = replace(JsonHarness.promises, adds_columns=False)
    file_format = "csv"
