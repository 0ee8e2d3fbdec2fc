"""Writes the rows of Lance data files into new files, without some of them. See `RewriteFiles`.

Runs in the commit of a batch of changes, on the driver or in the delivery process.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from ...committers.changes.keys import row_numbers
from ...committers.changes.rewriting import MaskedFile
from ...committers.contract import AttemptId, DataFile, Manifest
from ...committers.file_tables.manifest import LakeManifest
from ...committers.lance.library import read_file
from ...writers.lance.writer import LanceWriters


@dataclass(frozen=True, slots=True)
class LanceRewriter:
    """See `RewriteFiles`."""

    writers_of: Callable[[LakeManifest], LanceWriters]
    location: str
    storage_options: Mapping[str, str]

    def __call__(
        self, manifest: Manifest, content: LakeManifest, files: Sequence[MaskedFile]
    ) -> Sequence[DataFile]:
        batch = manifest.batch
        attempt = AttemptId(batch.stream.query_id, uuid.uuid4().hex, batch.batch_id, 0, 0)
        writer = self.writers_of(content).open(attempt)
        try:
            for masked in files:
                rows = read_file(f"{self.location}/{masked.file.path}", self.storage_options)
                stays = pc.invert(pc.is_in(row_numbers(rows.num_rows), value_set=masked.masked))
                for some in rows.filter(stays).to_batches():
                    writer.write(some)
            return writer.finish()
        except BaseException:
            writer.abort()
            raise
