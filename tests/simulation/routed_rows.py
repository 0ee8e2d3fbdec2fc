"""The rows of the source, which may name the service that they go to, and the tasks' writers of such rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.committers.contract import AttemptId, DataFile, DataFiles
from penstock.committers.row_log.names import row_log_path
from penstock.writers.row_log.route_names import Route, RouteColumns

if TYPE_CHECKING:
    from tests.simulation.request_lake import RequestSimLake

COLUMN = "place"
PLACES = ("often", "seldom", "later")
FILE_ROWS = 2
"""Rows of a file, so that some tasks write several files of one route."""


@dataclass(frozen=True)
class SourceRows:
    """What the tasks get of a batch.

    Args:
        places: that the rows name; none if the query has no routes
    """

    places: tuple[str, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        named = [(COLUMN, pa.string())] if self.places else []
        return pa.schema([("id", pa.int64()), *named])

    def of(self, ids: Sequence[int]) -> pa.RecordBatch:
        named = [pa.array(map(self.place_of, ids), pa.string())] if self.places else []
        return pa.record_batch([pa.array(ids, pa.int64()), *named], schema=self.schema)

    def place_of(self, row_id: int) -> str:
        """The row's service. One has its first row in the middle of the source, and one only some rows."""
        number = row_id % 1000
        if number >= 5 and number % 2:
            return "later"
        return "seldom" if "seldom" in self.places and number % 4 == 0 else "often"


@dataclass(frozen=True)
class RoutedWriters:
    """See `TaskWriterFactory`; in the place of `RouteWriters`."""

    lake: RequestSimLake
    columns: RouteColumns

    def open(self, attempt: AttemptId) -> RoutedWriter:
        return RoutedWriter(self.lake, self.columns, attempt)


class RoutedWriter:
    """See `TaskWriter`: the files of all routes."""

    def __init__(self, lake: RequestSimLake, columns: RouteColumns, attempt: AttemptId) -> None:
        self._lake, self._columns, self._attempt = lake, columns, attempt
        self._ids: dict[Route, list[int]] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        texts = [column.to_pylist() for column in self._columns.texts(batch)]
        for row_id, *route in zip(batch.column(0).to_pylist(), *texts, strict=True):
            self._ids.setdefault(tuple(route), []).append(row_id)

    def finish(self) -> DataFiles:
        files, rows = list[DataFile](), 0
        for route, ids in self._ids.items():
            values = tuple(zip(self._columns.names, route, strict=True))
            for first in range(0, len(ids), FILE_ROWS):
                some = tuple(ids[first : first + FILE_ROWS])
                path = row_log_path(self._attempt, rows)
                self._lake.objects.put(f"{self._lake.data_location}/{path}", some, size_bytes=len(some))
                files.append(DataFile(path, len(some), len(some), values))
                rows += len(some)
        return tuple(files)

    def abort(self) -> None:
        """A task that fails leaves its files to clean-up."""
