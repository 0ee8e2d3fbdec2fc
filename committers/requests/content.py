"""Manifests of request-based destinations: the files of the row log, or what its tasks have sent.

A kind of destination has two versions of manifests. Version 1 lists files, as in `FileManifests`. Version 2
counts the rows that the tasks of a coupled query have sent: it only records that they did.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import TypeAlias

from ..contract import Batch, DataFile, DataFiles, Manifest
from ..errors import ManifestCorruptError
from ..file_tables.file_manifests import FileManifests
from ..row_log.log import LoggedBatch
from ..row_log.names import RowLogName
from .contract import Sent

LOGGED, SENT = 1, 2
"""Versions of manifests."""
LOGGED_FOR_TABLE = 101
"""Version of a table's manifest that lists files of a row log, in place of files of the table."""

BATCHES_MAX = 1000
"""Batches of one delivery."""
BYTES_MAX = 1024**3
"""Size limit of the files of one delivery."""

RequestPayload: TypeAlias = "DataFiles | Sent"


@dataclass(frozen=True, slots=True)
class RequestManifests:
    """Encodes and decodes the manifests of one kind of destination."""

    kind: str
    logged: int = LOGGED
    """Version of those that list files."""

    @property
    def _logged(self) -> FileManifests:
        return FileManifests(self.kind, self.logged)

    def encode_files(self, batch: Batch, payloads: Iterable[DataFiles]) -> Manifest:
        return self._logged.encode(batch, payloads)

    def encode_sent(self, batch: Batch, payloads: Sequence[Sent]) -> Manifest:
        whole = sum(payloads, Sent())
        return Manifest(
            batch=batch,
            kind=self.kind,
            version=SENT,
            content=json.dumps([astuple(payload) for payload in payloads]).encode(),
            files=0,
            rows=whole.rows,
            size_bytes=whole.size_bytes,
            is_empty=not whole.rows,
        )

    def files(self, manifest: Manifest) -> DataFiles:
        """Return the files of the row log; none if the tasks have sent their rows.

        Raises:
            ManifestCorruptError: the manifest has another kind or version, or is damaged.
        """
        if manifest.version != SENT:
            return self._logged.decode(manifest)
        self._checked_sent(manifest)
        return ()

    def batches(self, manifest: Manifest) -> tuple[LoggedBatch, ...] | None:
        """Return the batches in the row log, oldest first; None if the tasks have sent their rows.

        Raises:
            ManifestCorruptError: also if a file does not belong to its batch.
        """
        files = self.files(manifest)
        if manifest.version == SENT:
            return None
        try:
            return tuple(LoggedBatch.of(batch, some) for batch, some in _by_batch(manifest, files))
        except ValueError as error:
            raise self._corrupt(manifest, error) from error

    def mergeable(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        """Return the longest prefix that can be one delivery."""
        taken: list[Manifest] = []
        size_bytes = 0
        for manifest in manifests:
            size_bytes += manifest.size_bytes
            is_full = len(taken) == BATCHES_MAX or size_bytes > BYTES_MAX
            if taken and (is_full or SENT in (manifest.version, taken[0].version)):
                break
            taken.append(manifest)
        return taken

    def merge(self, manifests: Sequence[Manifest]) -> Manifest:
        """Return one manifest for these batches, in their order.

        Args:
            manifests: the result of `mergeable`
        """
        last = manifests[-1]
        if last.version == SENT:
            return last.merging(manifests)
        whole = self.encode_files(last.batch, [self.files(manifest) for manifest in manifests])
        return whole.merging(manifests)

    def dropped_rows(self, manifest: Manifest) -> int:
        """Return how many of the rows that tasks have sent were refused. Those of a row log are not sent
        yet.
        """
        return self._checked_sent(manifest).dropped if manifest.version == SENT else 0

    def _checked_sent(self, manifest: Manifest) -> Sent:
        try:
            if manifest.kind != self.kind or manifest.files:
                raise ValueError(f"kind {manifest.kind!r}, {manifest.files} files")
            whole = sum((Sent(*map(_count, counts)) for counts in json.loads(manifest.content)), Sent())
            if (whole.rows, whole.size_bytes) != (manifest.rows, manifest.size_bytes):
                raise ValueError(f"{whole.rows} rows instead of {manifest.rows}")
        except (ValueError, TypeError, RecursionError) as error:
            raise self._corrupt(manifest, error) from error
        return whole

    def _corrupt(self, manifest: Manifest, error: Exception) -> ManifestCorruptError:
        return ManifestCorruptError(
            f"The manifest of batch {manifest.batch.batch_id} of {manifest.batch.stream} cannot be read as "
            f"one of kind {self.kind!r} ({error}). Nothing was sent. Restore the store from a backup, or "
            "use the version of Penstock that prepared the batch."
        )


def _by_batch(manifest: Manifest, files: DataFiles) -> Iterable[tuple[Batch, list[DataFile]]]:
    """
    Raises:
        ValueError: a file belongs to none of the batches.
    """
    some: dict[int, list[DataFile]] = {batch.batch_id: [] for batch in manifest.batches}
    for file in files:
        name = RowLogName.parse(file.path)
        if name is None or name.batch_id not in some:
            raise ValueError("it lists a file that is not of its batches")
        some[name.batch_id].append(file)
    return [(batch, some[batch.batch_id]) for batch in manifest.batches]


def _count(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r:.50} must be a count")
    return value
