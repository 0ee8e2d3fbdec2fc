"""Clean-up of a Lance table: its tokens, its data files, and the files that its versions list.

All versions of the table and of its branches count. A shallow clone elsewhere is unknown to the table, to
Lance's own clean-up as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from ..changes.key_files import is_key_path
from ..cleaning.cleanup import ListedFile
from ..contract import Token
from ..delta.files import delta_files
from .fragments import DATA
from .library import load_if_there, unreadable
from .table import table_id_of, token_of

if TYPE_CHECKING:
    from lance import LanceDataset


class LanceCleanableTable:
    """`cleanup.CleanableTable` for Lance. Each call reads the current state."""

    def __init__(self, table_uri: str, storage_options: Mapping[str, str]) -> None:
        self._uri = table_uri
        self._options = dict(storage_options)
        self._files = delta_files(table_uri, self._options)
        self._read_to: dict[str, int] = {}
        """The last version that was read, by branch."""

    def id_and_tokens(self, query_ids: Iterable[str]) -> tuple[str | None, Mapping[str, Token]]:
        table = load_if_there(self._uri, self._options)
        if table is None:
            return None, {}
        tokens = {query_id: token_of(table, query_id) for query_id in query_ids}
        found = {query_id: token for query_id, token in tokens.items() if token is not None}
        return table_id_of(table), found

    def files(self) -> Iterator[ListedFile]:
        for path, size_bytes, modified_at in self._files.walk():
            if path.startswith(f"{DATA}/") or is_key_path(path):
                yield ListedFile(path, size_bytes, modified_at)

    def names(self) -> Iterator[set[str]]:
        """Base names of the data files in versions that were not read before.

        Raises:
            RetryableError: a version cannot be read, so the files that it lists are unknown.
        """
        table = load_if_there(self._uri, self._options)
        if table is None:
            return
        try:
            yield from self._names_in(table, "")
            for branch in table.branches.list():
                yield from self._names_in(table.checkout_version((branch, None)), branch)
        except Exception as error:
            raise unreadable(self._uri, error) from error

    def delete_files(self, paths: Iterable[str]) -> int:
        return self._files.delete(paths)

    def _names_in(self, table: LanceDataset, branch: str) -> Iterator[set[str]]:
        first = self._read_to.get(branch, -1) + 1
        for batch in table.tracked_files(min_version=first):
            is_data = pc.equal(batch.column("type").cast("string"), "data file")
            paths = batch.column("path").filter(is_data).to_pylist()
            yield {path.rpartition("/")[2] for path in paths}
        self._read_to[branch] = table.version
