"""The objects below a Hudi table: local disk, S3 and Azure, through `obstore`.

Runs on the driver and in the delivery process. Paths are relative to the table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..cleaning.deletion import DeletionGuard, local_root
from ..cleaning.regular_files import check_regular, sync
from ..delta.object_store import errors_of_the_system, open_object_store
from ..errors import ConfigurationError
from .names import own_folder_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")

PAGE = 1000
"""Names that an object store lists in one request."""

_THREADS = 16


class HudiStorage:
    """Raises the errors of the operating system.

    Args:
        table_uri: a local path, or a URL
        storage_options: as in the Delta library

    Raises:
        ConfigurationError: the storage, or its credentials, are not supported.
    """

    def __init__(self, table_uri: str, storage_options: Mapping[str, str]) -> None:
        self._root = local_root(table_uri)
        self._remote = open_object_store(table_uri, storage_options) if self._root is None else None
        if self._root is None and self._remote is None:
            raise ConfigurationError(
                f"The Hudi table {table_uri} cannot be opened. penstock.hudi writes to local disks, S3 "
                "(s3://) and Azure (abfss://), with an access key, a web identity or a container's role. "
                "Give storage.AWS_ACCESS_KEY_ID and storage.AWS_SECRET_ACCESS_KEY, or their counterparts."
            )
        self._folder = self._root or table_uri
        self._guard = DeletionGuard([self._folder])

    @property
    def _store(self) -> ObjectStore:
        """
        Raises:
            FileNotFoundError: the folder of the table does not exist.
        """
        if self._remote is not None:
            return self._remote
        assert self._root is not None
        if not Path(self._root).is_dir():
            raise FileNotFoundError(self._root)
        return _disk(self._root)

    @property
    def is_local(self) -> bool:
        return self._root is not None

    def read(self, path: str) -> bytes | None:
        """None if it does not exist."""
        with errors_of_the_system():
            try:
                if self._root is not None:
                    check_regular(Path(self._root, path))
                return bytes(self._store.get(path).bytes())
            except FileNotFoundError:
                return None

    def exists(self, path: str) -> bool:
        with errors_of_the_system():
            try:
                self._store.head(path)
            except FileNotFoundError:
                return False
            return True

    def create(self, path: str, content: bytes = b"") -> bool:
        """Create an object, durably and atomically; return False if there is one already.

        It may be this one: a client repeats a request if the response is lost.
        """
        from obstore.exceptions import AlreadyExistsError

        if self._root is not None:
            Path(self._root).mkdir(parents=True, exist_ok=True)
        self._check_below([path])
        with errors_of_the_system():
            try:
                self._store.put(path, content, mode="create")
            except AlreadyExistsError:
                return False
        self._sync([path])
        return True

    def replace(self, path: str, content: bytes = b"") -> None:
        self._check_below([path])
        with errors_of_the_system():
            self._store.put(path, content)

    def copy_all(self, copies: Mapping[str, str]) -> None:
        """Copy objects, replacing those that exist: hard links on a local disk.

        Raises:
            FileNotFoundError: one of them does not exist.
        """

        def copy(pair: tuple[str, str]) -> None:
            with errors_of_the_system():
                self._store.copy(*pair)

        self._check_below([*copies, *copies.values()])
        _in_threads(copy, copies.items())
        self._sync(list(copies.values()))

    def create_all(self, paths: Iterable[str]) -> None:
        """Create empty objects that may exist already."""
        _in_threads(lambda path: self.create(path, b""), paths)

    def delete_all(self, paths: Iterable[str]) -> int:
        """Delete objects of the table; return how many there were."""

        def delete(path: str) -> bool:
            with errors_of_the_system():
                try:
                    self._store.head(path)
                    self._store.delete(path)
                except FileNotFoundError:
                    return False
            return True

        return sum(_in_threads(delete, self._guard.allowed_below(self._folder, paths)))

    def remove_empty_folders(self, folder: str) -> None:
        """Remove a folder of a local disk with the folders in it, if there is no file. Others have none."""
        if self._root is not None:
            self._check_below([folder])
            for name, _, _ in os.walk(Path(self._root, folder), topdown=False):
                with suppress(OSError):
                    Path(name).rmdir()

    def remove_own_folders(self, paths: Iterable[str]) -> None:
        """Remove the folders that only the batch of these files has, if they are empty."""
        for folder in {own_folder_of(path) for path in paths} - {None}:
            self.remove_empty_folders(str(folder))

    def _check_below(self, paths: Iterable[str]) -> None:
        """
        Raises:
            TableChangedError: one is not below the table.
        """
        self._guard.check_below(self._folder, paths)

    def existing(self, paths: Iterable[str]) -> set[str]:
        paths = list(paths)
        found = _in_threads(self.exists, paths)
        return {path for path, is_there in zip(paths, found, strict=True) if is_there}

    def names(self, folder: str) -> list[str]:
        """Names of the objects in a folder, not of those below it; on a local disk also of folders."""
        if self._root is not None:
            with suppress(FileNotFoundError):
                return os.listdir(Path(self._root, folder))  # noqa: PTH208  a path for each name takes longer
            return []
        with errors_of_the_system():
            listed = self._store.list_with_delimiter(f"{folder}/")
        return [one["path"].rpartition("/")[2] for one in listed["objects"]]

    def sizes(self, folders: Iterable[str]) -> Mapping[str, Mapping[str, int]]:
        """Return the files in each of some folders, not those below it, and their sizes in bytes, by name."""
        found: dict[str, Mapping[str, int]] = {}

        def list_one(folder: str) -> None:
            found[folder] = self._sizes(folder)

        _in_threads(list_one, folders)
        return found

    def _sizes(self, folder: str) -> Mapping[str, int]:
        if self._root is not None:
            try:
                with os.scandir(Path(self._root, folder)) as entries:
                    return {one.name: one.stat().st_size for one in entries if one.is_file()}
            except FileNotFoundError:
                return {}
        with errors_of_the_system():
            listed = self._store.list_with_delimiter(f"{folder}/" if folder else None)
        return {one["path"].rpartition("/")[2]: one["size"] for one in listed["objects"]}

    def names_after(self, folder: str, start: str) -> Iterator[str]:
        """Names in a folder of an object store that are greater than `start`, in order, those below it too.

        Read in pages of `PAGE`: a caller that stops early saves requests.
        """
        with errors_of_the_system():
            for page in self._store.list(f"{folder}/", offset=f"{folder}/{start}", chunk_size=PAGE):
                yield from (one["path"].removeprefix(f"{folder}/") for one in page)

    def first_names(self, folder: str) -> list[str]:
        """Names in a folder: on an object store only the first ones, as many as one request lists."""
        return self.names(folder) if self.is_local else list(islice(self.names_after(folder, ""), PAGE))

    def paths_below(self, folder: str) -> list[str]:
        with errors_of_the_system(), suppress(FileNotFoundError):
            return [one["path"] for batch in self._store.list(f"{folder}/") for one in batch]
        return []

    def _sync(self, paths: Sequence[str]) -> None:
        """Make new files of a local disk survive a power failure."""
        if self._root is None:
            return
        folders = {str(Path(path).parent) for path in paths}
        for name in (*paths, *folders):
            sync(Path(self._root, name))


def _in_threads(do: Callable[[T], bool | None], items: Iterable[T]) -> list[bool]:
    items = list(items)
    if len(items) < 2:
        return [bool(do(item)) for item in items]
    with ThreadPoolExecutor(min(_THREADS, len(items))) as threads:
        return [bool(done) for done in threads.map(do, items)]


@lru_cache(maxsize=16)
def _disk(root: str) -> ObjectStore:
    from obstore.store import LocalStore

    return LocalStore(root)
