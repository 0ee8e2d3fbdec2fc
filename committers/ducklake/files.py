"""The files of a DuckLake table that tasks write, and their clean-up."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..cleaning.cleanup import ListedFile
from ..contract import Token
from ..errors import RetryableError
from ..file_tables.files import TableFiles
from . import connection, fence
from .connection import LakeServer
from .storage import files_below
from .table import data_path_problem, files_location, load_if_there, settings_of


def location_of(server: LakeServer) -> str | None:
    """Where the files of the table are; None if there is no DuckLake, or none that Penstock writes.

    Raises:
        RetryableError: the catalog cannot be reached now.
        ConfigurationError: the files are on S3, and there is no access key.
    """
    with server.attached("Nothing was changed") as lake:
        if lake is None:
            return None
        data_path = settings_of(lake)["data_path"]
    return None if data_path_problem(data_path) else files_location(data_path, server.address)


def files_of(server: LakeServer) -> TableFiles | None:
    """The files of the table; None and errors as `location_of`."""
    location = location_of(server)
    return None if location is None else files_below(location, server.storage)


class DuckLakeCleanableTable:
    """See `CleanableTable`. Its files are those of tasks; DuckLake itself deletes what it has removed."""

    def __init__(self, server: LakeServer) -> None:
        self._server = server
        self._read: set[str] = set()

    def id_and_tokens(self, query_ids: Iterable[str]) -> tuple[str | None, Mapping[str, Token]]:
        address = self._server.address
        with self._server.attached("Nothing was deleted") as lake:
            table = None if lake is None else load_if_there(lake, address)
            if lake is None or table is None:
                return None, {}
            rows = {query_id: fence.read(lake, address, query_id) for query_id in query_ids}
        return table.table_id, {query_id: row.token for query_id, row in rows.items() if row is not None}

    def files(self) -> Iterator[ListedFile]:
        files = files_of(self._server)
        return iter(()) if files is None else (ListedFile(*one) for one in files.walk())

    def names(self) -> Iterator[set[str]]:
        """Names of all files of every snapshot, and of those that DuckLake is about to delete."""
        with self._server.attached("Nothing was deleted") as lake:
            if lake is None:
                raise RetryableError(
                    f"The catalog of {self._server.address.uri} is missing, so it is unknown which files it "
                    "lists. Nothing was deleted."
                )
            found = lake.rows(
                f"SELECT path FROM {lake.metadata('ducklake_data_file')} UNION ALL "
                f"SELECT path FROM {lake.metadata('ducklake_files_scheduled_for_deletion')}"
            )
        new = {posixpath.basename(path) for (path,) in found} - self._read
        self._read |= new
        yield new

    def delete_files(self, paths: Iterable[str]) -> int:
        files = files_of(self._server)
        return 0 if files is None else files.delete(paths)


@dataclass(frozen=True, slots=True)
class DuckLakeRecords:
    """See `QueryRecords`: the query's row in the fence table."""

    server: LakeServer
    query_id: str

    def found(self) -> Sequence[str]:
        address = self.server.address
        with self.server.attached("Nothing was removed") as lake:
            row = None if lake is None else fence.read(lake, address, self.query_id)
        if row is None:
            return []
        return [
            f"the row query_id='{self.query_id}', table_name='{address.table}' of the fence table "
            f"{address.schema}.{fence.FENCE_TABLE}"
        ]

    def remove(self) -> None:
        address, so = self.server.address, "The row of the fence table stays"
        with self.server.attached(so) as lake:
            if lake is None or not fence.is_there(lake, address):
                return
            lake.begin()
            fence.remove(lake, address, self.query_id)
            error = connection.commit(lake)
            if error is not None:
                raise self.server.failed(error, so)
