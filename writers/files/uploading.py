"""Data files in an object store that stay incomplete uploads until the commit. Executors only."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass

import pyarrow as pa

from ...committers.contract import AttemptId, DataFiles
from ...committers.files.object_folder import open_store
from ...committers.files.object_store import ObjectStore
from ...committers.files.staged import Upload, UploadedFile
from ..parquet.data_files import DataFileWriter
from ..parquet.file_names import FileNames
from ..parquet.write_config import WriteConfig


@dataclass(frozen=True, slots=True)
class UploadingWriters:
    """Opens task writers. Pickled to the executors, with the options of the object store."""

    config: WriteConfig

    def open(self, attempt: AttemptId) -> UploadingWriter:
        return UploadingWriter(self.config, attempt)


class UploadingWriter:
    """See `TaskWriter`."""

    def __init__(self, config: WriteConfig, attempt: AttemptId) -> None:
        self._objects = StagedObjects(open_store(config.location, config.storage_options))
        self._files = DataFileWriter(config, FileNames.of(attempt), (self._objects, ""))

    def write(self, batch: pa.RecordBatch) -> None:
        self._files.write(batch)

    def finish(self) -> DataFiles:
        return tuple(
            UploadedFile(
                file.path,
                file.size_bytes,
                file.rows,
                file.partition_values,
                file.statistics,
                self._objects.upload(file.path),
            )
            for file in self._files.finish()
        )

    def abort(self) -> None:
        self._files.abort()


class StagedObjects:
    """See `Objects`. What is created stays an upload, which no reader sees."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._uploads: dict[str, StagedParts] = {}

    def upload(self, path: str) -> Upload:
        return self._uploads[path].upload

    def create(self, path: str, content: memoryview) -> bool:
        parts = self.create_in_parts(path)
        try:
            parts.write(content)
        except Exception:
            with contextlib.suppress(Exception):
                self.delete(path)
            raise
        return True

    def create_in_parts(self, path: str) -> StagedParts:
        nonce = uuid.uuid4().hex
        parts = StagedParts(self._store, path, nonce, self._store.create_upload(path, nonce))
        self._uploads[path] = parts
        return parts

    def read(self, path: str) -> pa.Buffer:
        raise FileNotFoundError(path)

    def delete(self, path: str) -> None:
        self._store.abort(path, self._uploads[path].upload.upload_id)


class StagedParts:
    """See `Parts`. Each write is one part; all but the last have the size of `uploads.PART_BYTES` or more."""

    def __init__(self, store: ObjectStore, path: str, nonce: str, upload_id: str) -> None:
        self._store = store
        self._path = path
        self._nonce = nonce
        self._upload_id = upload_id
        self._ids: list[str] = []

    @property
    def upload(self) -> Upload:
        return Upload(self._upload_id, self._nonce, tuple(self._ids))

    def write(self, data: bytes | memoryview) -> None:
        if data or not self._ids:  # an upload has at least one part
            number = len(self._ids) + 1
            part = self._store.upload_part(self._path, self._upload_id, number, bytes(data))
            self._ids.append(part)

    def close(self) -> None:
        """Do nothing: the commit completes the upload."""
