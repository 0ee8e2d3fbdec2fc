"""A folder on S3 or Azure. Tasks upload the parts of their files, and the commit completes these uploads.

An incomplete upload is no object: no reader sees it. The journals are objects below the folder, in
`_penstock`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import TypeVar

from ..cleaning.cleanup import ListedFile
from ..cleaning.deletion import DeletionGuard
from ..delta.object_store import AZURE_SCHEMES
from ..errors import CommitStateUnknownError, ConfigurationError, RetryableError, TableChangedError
from ..probing import Probe
from .bucket import open_bucket
from .object_store import ConditionError, ObjectStore
from .place import FileState, JournalChangedError, StoredJournal
from .staged import UPLOADS_MAX, StagedFiles, Upload

T = TypeVar("T")
R = TypeVar("R")

FOLDER = "_penstock"
"""Readers ignore folders whose names begin with `_`."""
_PROBE = f"{FOLDER}/probe"
_checked: set[str] = set()
"""The buckets and containers that this process has checked."""


def is_remote(folder: str) -> bool:
    """Return True if the folder is in an object store."""
    return folder.partition("://")[0] in ("s3", *AZURE_SCHEMES)


def open_store(uri: str, storage_options: Mapping[str, str]) -> ObjectStore:
    """Open a folder in an object store. Runs anywhere.

    Args:
        storage_options: named as in the Delta library; what is missing comes from the environment

    Raises:
        ConfigurationError: the client is not installed, or does not accept an option.
    """
    if uri.startswith("s3://"):
        return open_bucket(uri, storage_options)
    try:
        from .container import open_container
    except ImportError:
        raise ConfigurationError(
            'Plain files on Azure need azure-storage-blob: pip install "penstock[files]".'
        ) from None
    return open_container(uri, storage_options)


@dataclass(frozen=True, slots=True)
class ObjectFolder:
    """See `Place`. A published file is a completed upload."""

    uri: str
    storage_options: Mapping[str, str] = field(repr=False)

    @property
    def why_missing(self) -> str:
        return self._store.why_missing

    @property
    def _store(self) -> ObjectStore:
        return open_store(self.uri, self.storage_options)

    def exists(self) -> bool:
        return next(self._store.paths(), None) is not None

    def probe(self) -> Probe:
        store = self._store

        def create(name: str) -> bool:
            try:
                store.create(f"{FOLDER}/{name}", b"")
            except ConditionError:
                return False
            return True

        return Probe(
            store.address(FOLDER), create, lambda name: store.remove(f"{FOLDER}/{name}"), lambda _: None
        )

    def open(self, *, create: bool) -> None:
        store = self._store
        if store.root not in _checked:
            _check_conditions(store)
            _checked.add(store.root)

    def journal_address(self, query_id: str) -> str:
        return self._store.address(_journal(query_id))

    def journals(self) -> Iterable[str]:
        names = [posixpath.basename(path) for path in self._store.paths(f"{FOLDER}/")]
        return [name.removesuffix(".journal") for name in names if name.endswith(".journal")]

    def read_journal(self, query_id: str) -> StoredJournal | None:
        found = self._store.get(_journal(query_id))
        return None if found is None else StoredJournal(found.content, found.etag)

    def replace_journal(self, query_id: str, content: bytes, replaced: StoredJournal | None) -> StoredJournal:
        path = _journal(query_id)
        try:
            if replaced is None:
                etag = self._store.create(path, content)
            else:
                etag = self._store.replace(path, content, replaced.version)
        except ConditionError as error:
            raise JournalChangedError(str(error)) from None
        except RetryableError as error:  # the request may still be on its way
            raise CommitStateUnknownError(str(error)) from error
        return StoredJournal(content, etag)

    def remove_journal(self, query_id: str) -> None:
        self._store.remove(_journal(query_id))

    def states(self, files: StagedFiles) -> Mapping[str, FileState]:
        self._check_below(files)
        return dict(zip(files, _in_threads(self._state, files.items()), strict=True))

    def publish(self, files: StagedFiles) -> None:
        self._check_below(files)
        _in_threads(self._publish, files.items())

    def mark(self, markers: Mapping[str, str]) -> None:
        self._check_below(markers)
        store = self._store
        _in_threads(lambda one: store.put(one[0], one[1].encode()), markers.items())

    def _check_below(self, paths: Iterable[str]) -> None:
        """
        Raises:
            TableChangedError: one is not below the folder.
        """
        DeletionGuard([self.uri]).check_below(self.uri, paths)

    def discard(self, files: StagedFiles) -> int:
        allowed = DeletionGuard([self.uri]).allowed_below(self.uri, files)
        return self._abort([(path, upload.upload_id) for path in allowed if (upload := files[path])])

    def staged(self) -> Iterator[ListedFile]:
        for path, _, initiated in self._store.uploads():
            yield ListedFile(path, 0, initiated)

    def delete_staged(self, paths: Iterable[str]) -> int:
        allowed = set(DeletionGuard([self.uri]).allowed_below(self.uri, paths))
        return self._abort([(path, one) for path, one, _ in self._store.uploads() if path in allowed])

    def paths(self) -> Iterator[str]:
        for path in self._store.paths():
            if not any(part.startswith(("_", ".")) for part in path.split("/")):
                yield path

    def has(self, pattern: str) -> bool:
        found = self._store.paths(pattern.partition("*")[0])
        return any(fnmatch(path, pattern) or path.startswith(f"{pattern}/") for path in found)

    def _state(self, file: tuple[str, Upload | None]) -> FileState:
        path, upload = file
        if upload is None:
            return FileState.MISSING
        # The upload first: if it is completed between the two requests, the object is found.
        is_staged = self._store.has_upload(path, upload)
        nonce = self._store.nonce(path)
        if nonce is None:
            return FileState.STAGED if is_staged else FileState.MISSING
        return FileState.PUBLISHED if nonce == upload.nonce else FileState.TAKEN

    def _publish(self, file: tuple[str, Upload | None]) -> None:
        """Complete an upload. If that fails, the nonce in the object's metadata tells whether it is done."""
        path, upload = file
        try:
            assert upload is not None
            self._store.complete(path, upload)
        except (ConditionError, RetryableError) as error:
            state = self._state(file)
            if state is FileState.PUBLISHED:
                return
            if state is FileState.STAGED:
                raise RetryableError(str(error)) from error
            what = (
                "is the file of another writer, which is not overwritten. Move it away"
                if state is FileState.TAKEN
                else f"is missing, and {self.why_missing}. Its rows are lost, unless the source has them"
            )
            raise TableChangedError(
                f"A file of a committed batch cannot be published: {self._store.address(path)} {what}."
            ) from error

    def _abort(self, uploads: Iterable[tuple[str, str]]) -> int:
        store = self._store
        return sum(_in_threads(lambda one: store.abort(*one), uploads))


def _journal(query_id: str) -> str:
    return f"{FOLDER}/{query_id}.journal"


def _check_conditions(store: ObjectStore) -> None:
    """Check that the storage does not ignore the conditions of requests, which make commits exactly-once.

    The probe object stays, so that several processes may check at once.

    Raises:
        ConfigurationError: it ignores one.
    """
    try:
        store.create(_PROBE, b"")
    except ConditionError:
        """It exists already."""
    upload_id = store.create_upload(_PROBE, "probe")
    part = store.upload_part(_PROBE, upload_id, 1, b"probe")
    conditional: Mapping[str, Callable[[], object]] = {
        "create": lambda: store.create(_PROBE, b""),
        "replace": lambda: store.replace(_PROBE, b"", '"0x0"'),
        "complete": lambda: store.complete(_PROBE, Upload(upload_id, "probe", (part,))),
    }
    ignored = [store.conditions[name] for name, request in conditional.items() if not _is_refused(request)]
    store.abort(_PROBE, upload_id)
    if ignored:
        raise ConfigurationError(
            f"The storage of {store.address('')} ignores the condition {' and '.join(ignored)}, so that two "
            "processes could commit at once. Nothing was written. Use a storage with conditional writes, or "
            "penstock.iceberg with a catalog."
        )


def _is_refused(request: Callable[[], object]) -> bool:
    try:
        request()
    except ConditionError:
        return True
    return False


def _in_threads(do: Callable[[T], R], items: Iterable[T]) -> list[R]:
    items = list(items)
    if len(items) < 2:
        return [do(item) for item in items]
    with ThreadPoolExecutor(min(UPLOADS_MAX, len(items)), "penstock-files") as threads:
        return list(threads.map(do, items))
