"""Compaction of an Iceberg table: the files that can be rewritten, and the snapshot that replaces them.

The snapshot has the operation `replace`, so incremental readers skip it. As for a batch, it is built on the
metadata just loaded, sent once, and accepted by the catalog only if the branch's head has not moved. The
stream's token is a table property and is not changed.

Tables with delete files are skipped, because they decide which rows of a data file are valid. Tables whose
partition values pyiceberg would write incorrectly are skipped too, because it rewrites the manifests of the
removed files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import FileFormat, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table

from ..contract import Conflict, DataFile
from ..error_causes import retryable
from ..errors import PenstockError
from ..file_tables.compaction import Outdated, Replaced, Replacement, Rewritten, VisibleFiles
from ..file_tables.manifest import LakeManifest
from ..protocol.failed_commit import failed_compaction
from .address import IcebergAddress
from .catalog import CatalogConfig, in_short, io_properties
from .checks import check_supported, has_double_partitions
from .data_files import iceberg_data_files, partition_strings
from .deletion_guard import table_deletion_guard
from .files import iceberg_files
from .library.changed_files import ReplaceFiles
from .library.snapshots import Live, UncopiedTransaction, delete_uncommitted
from .plan import data_location
from .snapshot import Attempt
from .table import load, load_if_there, token_of, version_of
from .target import KIND


class IcebergCompactableTable:
    """`compaction.CompactableTable` for one branch of an Iceberg table. Each call reads the current state.

    Args:
        query_id: its token shows the progress of the stream
    """

    def __init__(self, catalog: CatalogConfig, address: IcebergAddress, query_id: str) -> None:
        self._catalog = catalog
        self._address = address
        self._query_id = query_id
        self._entries: dict[str, list[ManifestEntry]] = {}
        """Cache of manifests read last; manifests never change."""

    def visible_files(self) -> VisibleFiles | None:
        table = load_if_there(self._catalog, self._address)
        if table is None:
            return None
        token = token_of(table.metadata, self._query_id, self._address.branch)
        if token is None:
            return None
        check_supported(table, "overwrite")
        content = LakeManifest(
            kind=KIND,
            mode="append",
            table_id=str(table.metadata.table_uuid),
            table_version=version_of(table.metadata, self._address.branch),
            schema_json=table.schema().model_dump_json(),
            new_columns=(),
            partition_by=tuple([part.name for part in table.spec().fields]),
            files=tuple(self._plain_files(table, self._live(table))),
            location=data_location(table),
            partition_spec_id=table.metadata.default_spec_id,
        )
        return VisibleFiles(content, token.batch_id)

    def replace(self, content: LakeManifest, rewritten: Sequence[Rewritten], batch_id: int) -> Replacement:
        table = load(self._catalog, self._address, content.table_id)
        token = token_of(table.metadata, self._query_id, self._address.branch)
        if token is None or token.batch_id >= batch_id:
            return Outdated("the stream has committed too many batches in the meantime")
        check_supported(table, "overwrite")
        layout = table.schema().model_dump_json(), table.metadata.default_spec_id, data_location(table)
        if layout != (content.schema_json, content.partition_spec_id, content.location):
            return Outdated("the table was altered in the meantime")
        live = self._live(table)
        there = set(self._plain_files(table, live))
        kept = tuple([group for group in rewritten if there.issuperset(group.sources)])
        if not kept:
            return Outdated("other writers have removed or changed the same files")
        missing = self._files(table).missing([file.path for group in kept for file in group.files])
        if missing:
            return Outdated(f"{len(missing)} new files are missing, first {missing[0]}")
        return self._send(self._prepare(table, content, kept, live), content, kept)

    def delete_files(self, paths: Iterable[str]) -> int:
        table = load_if_there(self._catalog, self._address)
        return 0 if table is None else self._files(table).delete(paths)

    def _files(self, table: Table) -> Any:
        return iceberg_files(data_location(table), io_properties(table), table_deletion_guard(table))

    # Files ----------------------------------------------------------------------------------------

    def _live(self, table: Table) -> Live:
        """
        Raises:
            RetryableError: a manifest cannot be read.
        """
        head = table.metadata.snapshot_by_name(self._address.branch)
        try:
            live = [] if head is None else [self._read(table, one) for one in head.manifests(table.io)]
        except Exception as error:  # noqa: BLE001  storages raise errors of any type
            raise retryable(error)(
                f"The manifests of the Iceberg table {self._address.uri} cannot be read: "
                f"{self._in_short(error)}. Nothing was compacted. Check that the storage is reachable."
            ) from None
        self._entries = {manifest.manifest_path: entries for manifest, entries in live}
        return live

    def _read(self, table: Table, manifest: ManifestFile) -> tuple[ManifestFile, list[ManifestEntry]]:
        known = self._entries.get(manifest.manifest_path)
        if known is None:
            known = list(manifest.fetch_manifest_entry(table.io, discard_deleted=True))
        return manifest, known

    def _plain_files(self, table: Table, live: Live) -> Iterator[DataFile]:
        """Files that can be rewritten: those of the current spec, in the locations where Penstock writes.

        Without statistics, because the new files get their own.
        """
        has_deletes = any(one.content is ManifestContent.DELETES and entries for one, entries in live)
        if has_deletes or has_double_partitions(table):
            return
        prefix = f"{data_location(table)}/"
        spec = table.spec()
        for manifest, entries in live:
            if manifest.partition_spec_id != spec.spec_id:
                continue
            for entry in entries:
                file = entry.data_file
                if file.file_format is FileFormat.PARQUET and file.file_path.startswith(prefix):
                    values = partition_strings(file.partition, spec, table.schema())
                    path = file.file_path.removeprefix(prefix)
                    yield DataFile(path, file.file_size_in_bytes, file.record_count, values)

    # Commit ---------------------------------------------------------------------------------------

    def _prepare(
        self, table: Table, content: LakeManifest, groups: Sequence[Rewritten], live: Live
    ) -> Attempt:
        sources = {f"{content.location}/{file.path}" for group in groups for file in group.sources}
        transaction = UncopiedTransaction(table)
        producer = ReplaceFiles(transaction, table, self._address.branch, live, sources)
        files = [file for group in groups for file in group.files]
        try:
            for file in iceberg_data_files(files, content.location, table.spec(), table.schema()):
                producer.append_data_file(file)
            producer.commit()
        except BaseException as error:
            with suppress(Exception):
                delete_uncommitted(producer)
            if isinstance(error, PenstockError) or not isinstance(error, Exception):
                raise
            raise retryable(error)(
                "The manifests of compacted files could not be written for the Iceberg table "
                f"{self._address.uri}: {self._in_short(error)}. Nothing was changed. The next run tries "
                "again."
            ) from None
        return Attempt.of(table, transaction, producer)

    def _send(
        self, attempt: Attempt, content: LakeManifest, groups: tuple[Rewritten, ...]
    ) -> Replaced | Conflict:
        try:
            attempt.send()
        except Exception as error:  # noqa: BLE001  the table shows whether it was committed
            return self._outcome_after(error, attempt, content, groups)
        return Replaced(attempt.snapshot_id, groups)

    def _outcome_after(
        self, error: Exception, attempt: Attempt, content: LakeManifest, groups: tuple[Rewritten, ...]
    ) -> Replaced | Conflict:
        """Interpret an error of the commit request."""
        failed = failed_compaction(
            f"the Iceberg table {self._address.uri}",
            self._in_short(error),
            can_commit_later=not self._catalog.is_embedded,
        )
        with failed.reading_table():
            found = self._outcome_in_table(error, attempt, content, groups)
        if found is None:
            raise attempt.give_up(failed) from None
        return found

    def _outcome_in_table(
        self, error: Exception, attempt: Attempt, content: LakeManifest, groups: tuple[Rewritten, ...]
    ) -> Replaced | Conflict | None:
        metadata = load(self._catalog, self._address, content.table_id).metadata
        if metadata.snapshot_by_id(attempt.snapshot_id) is not None:
            return Replaced(attempt.snapshot_id, groups)
        if isinstance(error, CommitFailedException):
            attempt.discard()
            return Conflict(f"another writer changed {self._address.uri}: {self._in_short(error)}")
        return None

    def _in_short(self, error: Exception) -> str:
        return in_short(error, self._catalog)
