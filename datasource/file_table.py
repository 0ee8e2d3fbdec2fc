"""What the targets of file tables have in common, whatever the format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..committers.contract import Batch, DataFiles, Manifest
from ..committers.errors import RetryableError
from ..committers.file_tables.manifest import LakeManifest, decode, manifest_of


class FileTableTarget:
    """The part of a target that goes by the manifest alone. Mixed into each format's target."""

    def manifest(self, batch: Batch, content: LakeManifest, payloads: Sequence[DataFiles]) -> Manifest:
        """See `Target`."""
        return manifest_of(batch, content, payloads)

    def target_id_of(self, manifest: Manifest) -> str:
        """See `Identified`."""
        return decode(manifest).table_id

    def check_follows(self, content: LakeManifest, pending: Iterable[Manifest]) -> None:
        """See `Ordered`. Two batches that were both planned as the first to bring new columns must bring the
        same ones: formats number columns, and the second one would give the number of the first to another.
        """
        if not content.new_columns:
            return
        for manifest in pending:
            waiting = decode(manifest)
            if waiting.new_columns and waiting.schema_json != content.schema_json:
                raise RetryableError(
                    f"Batch {manifest.batch.batch_id} of {manifest.batch.stream} is to add the column(s) "
                    f"{', '.join(waiting.new_columns)} to the table and is not delivered yet; this start of "
                    f"the query adds {', '.join(content.new_columns)}. Let it be delivered first (`penstock "
                    "deliver --once`), then start the query again."
                )


def data_files_of(manifest: Manifest) -> DataFiles:
    """
    Raises:
        ManifestCorruptError: nobody can tell which they are.
    """
    return decode(manifest).files
