"""A table of Paimon's REST catalog: the server decides which snapshot is the next one.

`POST .../tables/<table>/commit` has the id of the table, the UUID of the snapshot on which the commit is
based, and the new snapshot. The server answers `success: false`, and changes nothing, if that is not its
newest snapshot: https://paimon.apache.org/docs/master/concepts/rest/rest-api/. The files of older snapshots
are in the table's folder, as in a file-system catalog.
"""

from __future__ import annotations

import json
from typing import Any

from ..cleaning.deletion import local_root
from ..error_causes import retryable
from ..errors import NEXT_TRY, PenstockError, RetryableError, SchemaMismatchError, TableNotSupportedError
from .address import PaimonAddress
from .catalog import CatalogConfig
from .folder import TableFolder
from .table import Head, NextCommit, Snapshot, dropped


class CatalogTable:
    """See `PaimonTable`."""

    def __init__(self, config: CatalogConfig, address: PaimonAddress) -> None:
        self._config = config
        self._address = address
        self._catalog: Any = None
        self._folder: TableFolder | None = None
        self._newest: Any = None
        """The snapshot that was read last."""

    @property
    def place(self) -> str:
        return self._address.uri

    # What the catalog has ---------------------------------------------------------------------------

    def table_id(self) -> str | None:
        loaded = self._load()
        return None if loaded is None else str(loaded.catalog_environment.uuid)

    def load(self) -> Any:
        loaded = self._load()
        if loaded is None:
            raise dropped(self.place)
        return loaded

    def location(self) -> str | None:
        folder = self._opened_folder()
        return None if folder is None else folder.path

    def head(self) -> Head:
        newest = self._load_newest()
        return Head() if newest is None else Head(newest.id, newest.uuid)

    def create(self, schema: Any) -> None:
        from pypaimon.api.rest_exception import BadRequestException, NoSuchResourceException

        try:
            catalog = self._open()
            try:
                catalog.create_table(self._address.name, schema, True)
            except NoSuchResourceException:
                catalog.create_database(self._address.database, True)
                catalog.create_table(self._address.name, schema, True)
        except BadRequestException as error:
            raise SchemaMismatchError(
                f"The catalog refuses to create the Paimon table {self.place}: {self.in_short(error)}. Fix "
                "the columns of the query or tableProperties."
            ) from None
        except Exception as error:  # noqa: BLE001  pypaimon raises errors of any type
            if self.table_id() is None:
                raise retryable(error)(
                    f"The Paimon table {self.place} cannot be created: {self.in_short(error)}. Check "
                    f"catalog.uri and that this user may create tables. {NEXT_TRY}"
                ) from None

    def commit(self, commit: NextCommit) -> bool:
        """Send the request once."""
        return bool(
            self._open().commit_snapshot(
                self._identifier(),
                commit.table_id,
                commit.base.uuid,
                commit.snapshot,
                list(commit.statistics),
            )
        )

    def may_commit_later(self, error: BaseException) -> bool:
        from pypaimon.api import rest_exception as rest
        from pypaimon.catalog import catalog_exception as catalog

        refused = (
            rest.BadRequestException,
            rest.NotAuthorizedException,
            rest.NotImplementedException,
            catalog.TableNoPermissionException,
            catalog.TableNotExistException,
        )
        found: BaseException | None = error
        while found is not None:
            if isinstance(found, refused):
                return False
            found = found.__cause__
        return True

    # Files in the table's folder --------------------------------------------------------------------

    def snapshot_ids(self) -> list[int]:
        """Return the ids of the files, up to the newest snapshot of the catalog, which always counts."""
        newest, folder = self._load_newest(), self._opened_folder()
        if newest is None or folder is None:
            return []
        return sorted({one for one in folder.snapshot_ids() if one < newest.id} | {newest.id})

    def snapshot(self, snapshot_id: int) -> Snapshot | None:
        newest = self._newest
        if newest is not None and newest.id == snapshot_id:
            properties = {str(key): str(value) for key, value in (newest.properties or {}).items()}
            return Snapshot(newest.id, newest.commit_user, newest.commit_identifier, properties)
        folder = self._opened_folder()
        return None if folder is None else folder.snapshot(snapshot_id)

    def names(self, folder: str) -> list[str]:
        opened = self._opened_folder()
        return [] if opened is None else opened.names(folder)

    def read(self, name: str) -> bytes | None:
        opened = self._opened_folder()
        return None if opened is None else opened.read(name)

    def replace(self, name: str, content: bytes) -> None:
        self._existing_folder().replace(name, content)

    def delete(self, name: str) -> None:
        self._existing_folder().delete(name)

    # Errors -------------------------------------------------------------------------------------------

    def in_short(self, error: BaseException) -> str:
        return self._config.in_short(error)

    def unreadable(self, error: Exception) -> RetryableError:
        return retryable(error)(
            f"The Paimon table {self.place} cannot be read: {self.in_short(error)}. Nothing was committed. "
            f"Check the options catalog.* and that the catalog can be reached. {NEXT_TRY}"
        )

    # pypaimon -----------------------------------------------------------------------------------------

    def _open(self) -> Any:
        if self._catalog is None:
            self._catalog = self._config.open()
        return self._catalog

    def _identifier(self) -> Any:
        from pypaimon.common.identifier import Identifier

        return Identifier.from_string(self._address.name)

    def _load(self) -> Any:
        """Return the table of pypaimon; None if there is none."""
        try:
            catalog = self._open()
            from pypaimon.catalog.catalog_exception import DatabaseNotExistException, TableNotExistException

            try:
                loaded = catalog.get_table(self._identifier())
            except (TableNotExistException, DatabaseNotExistException):
                self._folder = None
                return None
        except PenstockError:
            raise
        except Exception as error:  # noqa: BLE001  pypaimon raises errors of any type
            raise self.unreadable(error) from None
        self._folder = TableFolder(self._local_path(loaded))
        return loaded

    def _load_newest(self) -> Any:
        """Return the newest snapshot; None if there is none, or no table."""
        try:
            catalog = self._open()
            from pypaimon.catalog.catalog_exception import TableNotExistException

            try:
                found = catalog.load_snapshot(self._identifier())
            except TableNotExistException:
                found = None
        except PenstockError:
            raise
        except Exception as error:  # noqa: BLE001  pypaimon raises errors of any type
            raise self.unreadable(error) from None
        self._newest = None if found is None else found.snapshot
        return self._newest

    def _opened_folder(self) -> TableFolder | None:
        if self._folder is None:
            self._load()
        return self._folder

    def _existing_folder(self) -> TableFolder:
        folder = self._opened_folder()
        if folder is None:
            raise dropped(self.place)
        return folder

    def _local_path(self, loaded: Any) -> str:
        from pypaimon.table.file_store_table import FileStoreTable

        problem = ""
        if not isinstance(loaded, FileStoreTable):
            problem = f"is not a table of snapshots, but a {type(loaded).__name__}. Use another table"
        elif loaded.catalog_environment.uuid is None:
            problem = (
                "has no id, by which the catalog would notice that it was created again. Use another catalog"
            )
        elif json.loads(loaded.catalog_environment.rest_table_response or "{}").get("isExternal"):
            problem = "is external: the catalog does not commit to it. Use a table that the catalog manages"
        elif (path := local_root(loaded.table_path)) is None:
            problem = (
                f"is at {loaded.table_path}. Penstock writes Paimon tables on a disk that driver and "
                "executors share. Use a warehouse there"
            )
        else:
            return path
        raise TableNotSupportedError(f"The Paimon table {self.place} {problem}. Nothing was written.")
