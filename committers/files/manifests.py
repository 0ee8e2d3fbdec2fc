"""Manifests of plain files: the files of a batch, and what the options of its query say about it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..contract import Batch, DataFile, DataFiles, Manifest
from ..errors import ManifestCorruptError
from ..file_tables.file_manifests import FileManifests, data_file
from .markers import Markers
from .partitions import TableName
from .staged import UploadedFile, upload_of

KIND = "files"


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """What the options of its query say about a batch: what the commit does once the files are visible, and
    how they are written.
    """

    markers: Markers = field(default_factory=Markers)
    table: TableName | None = None
    """Gets the partitions of the batch."""
    layout: str = ""
    """What a delivery needs to rewrite the files; empty if it does not. See `FileLayout`."""

    def encode(self) -> dict[str, Any]:
        content: dict[str, Any] = {"success": self.markers.success, "manifests": self.markers.manifests}
        if self.table is not None:
            content["table"] = [self.table.catalog, str(self.table)]
        if self.layout:
            content["layout"] = self.layout
        return content

    @classmethod
    def decode(cls, content: Mapping[str, Any]) -> BatchOptions:
        """
        Raises:
            ValueError, KeyError, TypeError: it is not what `encode` returns.
        """
        table = TableName.parse(*map(str, content["table"])) if "table" in content else None
        markers = Markers(str(content["success"]), bool(content["manifests"]))
        return cls(markers, table, str(content.get("layout", "")))


@dataclass(frozen=True, slots=True)
class FolderManifests(FileManifests):
    """As `FileManifests`. A first line has the options, if there are any."""

    def encode_with(self, batch: Batch, payloads: Iterable[DataFiles], options: BatchOptions) -> Manifest:
        manifest = self.encode(batch, payloads)
        if options == BatchOptions():
            return manifest
        line = json.dumps(options.encode()).encode()
        return replace(manifest, content=line + b"\n" + manifest.content)

    def decode(self, manifest: Manifest) -> DataFiles:
        files = manifest.content.rpartition(b"\n")[2]
        return FileManifests.decode(self, replace(manifest, content=files))

    def options_of(self, manifest: Manifest) -> BatchOptions:
        """Return the options of a manifest that `decode` accepts.

        Raises:
            ManifestCorruptError: it is damaged.
        """
        line = manifest.content.rpartition(b"\n")[0]
        try:
            return BatchOptions.decode(json.loads(line)) if line else BatchOptions()
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            batch = manifest.batch
            raise ManifestCorruptError(
                f"The manifest of batch {batch.batch_id} of {batch.stream} cannot be read ({error!r}). "
                "Nothing was committed. Restore the store from a backup."
            ) from error


def _file_of(
    path: object, size_bytes: object, rows: object, values: object, statistics: object, upload: object = None
) -> DataFile:
    file = data_file(path, size_bytes, rows, values, statistics)
    if upload is None:
        return file
    if not isinstance(upload, list):
        raise TypeError("invalid upload of a file")
    return UploadedFile(
        file.path, file.size_bytes, file.rows, file.partition_values, file.statistics, upload_of(*upload)
    )


MANIFESTS = FolderManifests(KIND, file_of=_file_of)
