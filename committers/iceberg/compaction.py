"""Compaction of an Iceberg table: the files that can be rewritten, and the snapshot that replaces them.

The snapshot has the operation `replace`, so incremental readers skip it. As for a batch, it is built on the
metadata just loaded, sent once, and accepted by the catalog only if the branch's head has not moved. The
stream's token is a table property and is not changed.

Deleted rows are left out, and the position deletes of the old files are removed with them. A file whose
delete files have changed since it was read is not replaced. Tables with equality deletes are skipped: which
rows they delete is only known after reading all of them. Tables whose partition values pyiceberg would write
incorrectly are skipped too, because it rewrites the manifests of the removed files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import FileFormat, ManifestEntry
from pyiceberg.table import Table

from ..contract import Conflict, DataFile
from ..error_causes import retryable
from ..errors import PenstockError, TableNotSupportedError
from ..file_tables.compaction import DeletedRows as CompactedRows
from ..file_tables.compaction import Outdated, Replaced, Replacement, Rewritten, VisibleFiles
from ..file_tables.manifest import LakeManifest
from ..protocol.failed_commit import failed_compaction
from .address import IcebergAddress
from .catalog import CatalogConfig, in_short, io_properties
from .checks import check_supported, has_double_partitions
from .data_files import iceberg_data_files, partition_strings
from .deletion_guard import table_deletion_guard
from .files import iceberg_files, open_location
from .library.changed_files import ReplaceFiles
from .library.snapshots import UncopiedTransaction, delete_uncommitted
from .live_files import LiveFiles, live_files
from .plan import data_location
from .position_deletes import DeletedRows, DeleteFiles
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

    def visible_files(self) -> VisibleFiles | None:
        table = load_if_there(self._catalog, self._address)
        if table is None:
            return None
        token = token_of(table.metadata, self._query_id, self._address.branch)
        if token is None:
            return None
        check_supported(table, "overwrite")
        there = self._files_there(table)
        content = LakeManifest(
            kind=KIND,
            mode="append",
            table_id=str(table.metadata.table_uuid),
            table_version=version_of(table.metadata, self._address.branch),
            schema_json=table.schema().model_dump_json(),
            new_columns=(),
            partition_by=tuple([part.name for part in table.spec().fields]),
            files=there.files,
            location=data_location(table),
            partition_spec_id=table.metadata.default_spec_id,
        )
        return VisibleFiles(content, token.batch_id, there.deleted(), there.read_deleted)

    def replace(self, content: LakeManifest, rewritten: Sequence[Rewritten], batch_id: int) -> Replacement:
        table = load(self._catalog, self._address, content.table_id)
        token = token_of(table.metadata, self._query_id, self._address.branch)
        if token is None or token.batch_id >= batch_id:
            return Outdated("the stream has committed too many batches in the meantime")
        check_supported(table, "overwrite")
        layout = table.schema().model_dump_json(), table.metadata.default_spec_id, data_location(table)
        if layout != (content.schema_json, content.partition_spec_id, content.location):
            return Outdated("the table was altered in the meantime")
        there = self._files_there(table)
        kept = tuple([group for group in rewritten if there.has(group)])
        if not kept:
            return Outdated("other writers have removed or changed the same files")
        missing = self._files(table).missing([file.path for group in kept for file in group.files])
        if missing:
            return Outdated(f"{len(missing)} new files are missing, first {missing[0]}")
        return self._send(self._prepare(table, content, kept, there), content, kept)

    def delete_files(self, paths: Iterable[str]) -> int:
        table = load_if_there(self._catalog, self._address)
        return 0 if table is None else self._files(table).delete(paths)

    def _files(self, table: Table) -> Any:
        return iceberg_files(data_location(table), io_properties(table), table_deletion_guard(table))

    # Files ----------------------------------------------------------------------------------------

    def _files_there(self, table: Table) -> _Files:
        """
        Raises:
            RetryableError: a manifest cannot be read.
        """
        try:
            live = live_files(table, self._address.branch)
        except Exception as error:  # noqa: BLE001  storages raise errors of any type
            raise retryable(error)(
                f"The manifests of the Iceberg table {self._address.uri} cannot be read: "
                f"{self._in_short(error)}. Nothing was compacted. Check that the storage is reachable."
            ) from None
        try:
            deletes = DeleteFiles(live.deletes, f"The Iceberg table {self._address.uri}")
        except TableNotSupportedError:
            return _Files(table, live, None)
        return _Files(table, live, deletes)

    # Commit ---------------------------------------------------------------------------------------

    def _prepare(
        self, table: Table, content: LakeManifest, groups: Sequence[Rewritten], there: _Files
    ) -> Attempt:
        sources = {f"{content.location}/{file.path}" for group in groups for file in group.sources}
        transaction = UncopiedTransaction(table)
        producer = ReplaceFiles(
            transaction,
            table,
            self._address.branch,
            there.live.manifests,
            sources,
            there.only_needed_by(groups),
        )
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


class _Files:
    """The files of one version of a table.

    Args:
        deletes: None if some of them cannot be read
    """

    def __init__(self, table: Table, live: LiveFiles, deletes: DeleteFiles | None) -> None:
        self.live = live
        self._deletes = deletes
        self._prefix = f"{data_location(table)}/"
        self._rows = DeletedRows(open_location(io_properties(table)))
        is_skipped = deletes is None or has_double_partitions(table)
        self.files = () if is_skipped else tuple(self._plain_files(table))
        self._known = frozenset(self.files)

    def _plain_files(self, table: Table) -> Iterator[DataFile]:
        """Files that can be rewritten: those of the current spec, in the locations where Penstock writes.

        Without statistics, because the new files get their own.
        """
        spec = table.spec()
        for entry in self.live.data.values():
            file = entry.data_file
            is_own = file.file_format is FileFormat.PARQUET and file.file_path.startswith(self._prefix)
            if is_own and file.spec_id == spec.spec_id:
                values = partition_strings(file.partition, spec, table.schema())
                path = file.file_path.removeprefix(self._prefix)
                yield DataFile(path, file.file_size_in_bytes, file.record_count, values)

    def has(self, group: Rewritten) -> bool:
        """Return True if the sources of a group are there, and no other rows of them are deleted."""
        sources = [file.path for file in group.sources]
        origins = {path: origin for path in sources if (origin := self._origin(path))}
        return self._known.issuperset(group.sources) and origins == dict(group.deleted)

    def deleted(self) -> dict[str, CompactedRows]:
        """See `VisibleFiles`."""
        found = {}
        for file in self.files:
            if origin := self._origin(file.path):
                applying, data = self._applying(file.path), self._entry(file.path).data_file
                own = self._deletes.of_file(self._entry(file.path)) if self._deletes else []
                count = sum(one.data_file.record_count for one in applying)
                if len(own) < len(applying):  # the others have rows of several files
                    count = len(self._rows.of(data, applying))
                found[file.path] = CompactedRows(count, origin)
        return found

    def read_deleted(self, paths: Collection[str]) -> dict[str, pa.Array]:
        """See `ReadDeleted`."""
        self._rows.load(one for path in paths for one in self._applying(path))
        return {path: self._rows.of(self._entry(path).data_file, self._applying(path)) for path in paths}

    def only_needed_by(self, groups: Sequence[Rewritten]) -> list[str]:
        """Locations of the delete files that only the sources of these groups need, or nothing at all."""
        if self._deletes is None:
            return []
        entries = [self._entry(file.path) for group in groups for file in group.sources]
        own = [one for entry in entries for one in self._deletes.of_file(entry)]
        return [one.data_file.file_path for one in (*own, *self._deletes.unneeded(self.live.data))]

    def _origin(self, path: str) -> str:
        """The delete files that may have rows of a file: they never change, so together they tell which rows
        are deleted. Empty if there are none.
        """
        return "\n".join(sorted(one.data_file.file_path for one in self._applying(path)))

    def _applying(self, path: str) -> list[ManifestEntry]:
        found = self.live.data.get(f"{self._prefix}{path}")
        return [] if found is None or self._deletes is None else self._deletes.applying_to(found)

    def _entry(self, path: str) -> ManifestEntry:
        return self.live.data[f"{self._prefix}{path}"]
