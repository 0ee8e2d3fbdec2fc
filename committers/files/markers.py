"""Small files that tell readers which batches of a folder are complete, written after their data files."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..contract import Batch, DataFile

SUCCESS = "_SUCCESS"
MANIFESTS = "_manifest"
"""Readers ignore files and folders whose names begin with `_`."""


@dataclass(frozen=True, slots=True)
class Markers:
    """Which markers a query writes."""

    success: str = "none"
    """`batch`: `_SUCCESS` in the folder; `partition`: in each partition that the batch has files in."""
    manifests: bool = False
    """A file for each batch that lists its files."""

    def of(self, batch: Batch, files: Iterable[DataFile]) -> dict[str, str]:
        """Return the content of each marker of a batch, by its path in the folder."""
        files = list(files)
        markers = {}
        if self.success == "batch":
            markers[SUCCESS] = ""
        elif self.success == "partition":
            markers = {posixpath.join(posixpath.dirname(file.path), SUCCESS): "" for file in files}
        if self.manifests:
            path = f"{MANIFESTS}/{batch.stream.query_id}-{batch.batch_id:020}.manifest"
            markers[path] = _manifest(batch, files)
        return markers


def _manifest(batch: Batch, files: Iterable[DataFile]) -> str:
    listed = [{"path": file.path, "size_bytes": file.size_bytes, "rows": file.rows} for file in files]
    query: Mapping[str, object] = {"query_id": batch.stream.query_id, "batch_id": batch.batch_id}
    return json.dumps({**query, "files": listed})
