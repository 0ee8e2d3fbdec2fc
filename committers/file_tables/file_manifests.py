"""Manifests that only list the files of a batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from pathlib import PurePosixPath

from ..contract import Batch, DataFile, DataFiles, Manifest
from ..errors import ManifestCorruptError


def data_file(path: object, size_bytes: object, rows: object, values: object, statistics: object) -> DataFile:
    """Return the file with these fields, as decoded from JSON.

    Raises:
        ValueError, TypeError: a field is invalid.
    """
    if not isinstance(path, str) or not isinstance(size_bytes, int) or not isinstance(rows, int):
        raise TypeError("invalid path, size or row count of a file")
    if not isinstance(values, list) or not isinstance(statistics, str):
        raise TypeError("invalid partition values or statistics of a file")
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts or "\0" in path:
        raise ValueError("a path points outside of the destination")
    return DataFile(path, size_bytes, rows, tuple((name, value) for name, value in values), statistics)


@dataclass(frozen=True, slots=True)
class FileManifests:
    """Encodes and decodes the manifests of one kind of destination as JSON."""

    kind: str
    version: int = 1
    file_of: Callable[..., DataFile] = data_file
    """Returns the file with the decoded fields; see `data_file`. For subclasses of `DataFile`."""

    def encode(self, batch: Batch, payloads: Iterable[DataFiles]) -> Manifest:
        """Combine all files of one batch into one manifest. A batch without files is empty."""
        files = [file for payload in payloads for file in payload]
        return Manifest(
            batch=batch,
            kind=self.kind,
            version=self.version,
            content=json.dumps([astuple(file) for file in files], ensure_ascii=False).encode(),
            files=len(files),
            rows=sum(file.rows for file in files),
            size_bytes=sum(file.size_bytes for file in files),
            is_empty=not files,
        )

    def decode(self, manifest: Manifest) -> DataFiles:
        """Return the payloads that were passed to `encode`.

        Raises:
            ManifestCorruptError: the manifest has another kind or version, or is damaged.
        """
        try:
            if (manifest.kind, manifest.version) != (self.kind, self.version):
                raise ValueError(f"kind {manifest.kind!r}, version {manifest.version}")
            files = tuple(self.file_of(*fields) for fields in json.loads(manifest.content))
            if len(files) != manifest.files:
                raise ValueError(f"{len(files)} files instead of {manifest.files}")
        except (ValueError, TypeError, RecursionError) as error:
            batch = manifest.batch
            raise ManifestCorruptError(
                f"The manifest of batch {batch.batch_id} of {batch.stream} cannot be read as one of kind "
                f"{self.kind!r} ({error}). Nothing was committed. Restore the store from a backup, or use "
                "the version of the package that prepared the batch."
            ) from error
        return files
