"""Clean-up of an Iceberg table: its tokens, its data files, and the files that its metadata lists.

All snapshots of the current metadata count, of all branches and tags; earlier metadata files do not count.
Expired snapshots count as long as the store keeps their files for running readers. Files below `metadata/`
are not checked: pyiceberg's file names do not tell who wrote them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping

from pyiceberg.table import Table

from ..cleaning.cleanup import ListedFile
from ..contract import Token
from ..errors import PenstockError, RetryableError
from ..file_tables.files import TableFiles
from ..file_tables.shared_files import shared_with
from .deletion_guard import table_deletion_guard
from .expiry import ExpiryStore
from .files import iceberg_files
from .plan import data_location
from .reachability import decode_expired, live_files, manifests_of
from .redaction import redacted
from .table import token_of

_LOADS_MAX = 5
_METADATA = ".metadata.json"


class IcebergCleanableTable:
    """`cleanup.CleanableTable` for one branch of an Iceberg table. Each call reads the current state.

    Args:
        load_table: returns the current table from the catalog; None if it does not exist
        table_uri: for display
        branch: written by the streams whose files are cleaned up
        expiries: expiry records of the store
        in_short: formats an error without secrets
    """

    def __init__(
        self,
        load_table: Callable[[], Table | None],
        table_uri: str,
        branch: str,
        expiries: ExpiryStore,
        in_short: Callable[[BaseException], str] = lambda error: redacted(error, {}),
    ) -> None:
        self._load_table = load_table
        self._uri = table_uri
        self._branch = branch
        self._expiries = expiries
        self._in_short = in_short
        self._read_manifests: set[str] = set()

    def id_and_tokens(self, query_ids: Iterable[str]) -> tuple[str | None, Mapping[str, Token]]:
        table = self._load_table()
        if table is None:
            return None, {}
        tokens = {query_id: token_of(table.metadata, query_id, self._branch) for query_id in query_ids}
        found = {query_id: token for query_id, token in tokens.items() if token is not None}
        return str(table.metadata.table_uuid), found

    def files(self) -> Iterator[ListedFile]:
        """All files below the data location, except metadata and tables inside it.

        None if another table shares them: they are cleaned up with that one.
        """
        table = self._load_table()
        if table is None or shared_with(table.properties) is not None:
            return iter(())
        listed = [ListedFile(*file) for file in self._files(table).walk()]
        inner = {root for file in listed if (root := _root_of_metadata(file.path)) is not None}
        return (file for file in listed if not _is_below(file.path, inner))

    def names(self) -> Iterator[set[str]]:
        """Base names in manifests that were not read before.

        Raises:
            RetryableError: a manifest cannot be read, so the files that it lists are unknown.
        """
        for _ in range(_LOADS_MAX):
            try:
                yield from self._new_names()
                return
            except PenstockError:
                raise
            except FileNotFoundError:
                continue  # expired and deleted in the meantime: the next metadata no longer lists it
            except Exception as error:  # noqa: BLE001  storages raise errors of any type
                raise self._unreadable(self._in_short(error)) from None
        raise self._unreadable("files that its metadata lists are missing")

    def delete_files(self, paths: Iterable[str]) -> int:
        table = self._load_table()
        return 0 if table is None else self._files(table).delete(paths)

    def _new_names(self) -> Iterator[set[str]]:
        table = self._load_table()
        if table is None:
            return
        for expiry in self._expiries.of_table(str(table.metadata.table_uuid)):
            yield _base_names(decode_expired(expiry.content).data_files)
        for path, manifest in manifests_of(table.io, table.metadata.snapshots).items():
            if path not in self._read_manifests:
                yield _base_names(live_files(table.io, manifest))
                self._read_manifests.add(path)

    def _files(self, table: Table) -> TableFiles:
        return iceberg_files(data_location(table), table.io.properties, table_deletion_guard(table))

    def _unreadable(self, what: str) -> RetryableError:
        return RetryableError(
            f"The manifests of the Iceberg table {self._uri} cannot be read: {what}. Files that they may "
            "list were not deleted. Check that the storage is reachable, then try again."
        )


def _base_names(paths: Iterable[str]) -> set[str]:
    return {posixpath.basename(path) for path in paths}


def _root_of_metadata(path: str) -> str | None:
    """The table, relative to the data location, whose metadata file this is; None if it is not a metadata
    file.
    """
    folder = posixpath.dirname(path)
    is_metadata = path.endswith(_METADATA) and posixpath.basename(folder) == "metadata"
    return posixpath.dirname(folder) if is_metadata else None


def _is_below(path: str, roots: set[str]) -> bool:
    """Return True if the file is metadata of this table, or is below one of `roots`."""
    folders = path.split("/")[:-1]
    below_inner = any("/".join(folders[:depth]) in roots for depth in range(1, len(folders) + 1))
    return below_inner or folders[:1] == ["metadata"]
