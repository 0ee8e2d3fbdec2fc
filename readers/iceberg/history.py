"""The snapshots of a branch of an Iceberg table, for streams: the rows that each one adds.

Operations: Iceberg's specification, "Snapshots". A snapshot and its manifests never change, so what is read
of them is the same in each process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone

from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.types import NestedField

from ...committers.errors import ConfigurationError
from ...committers.iceberg.address import MAIN_BRANCH
from ...committers.iceberg.live_files import MANIFEST_CACHE
from ...committers.iceberg.table import load_if_there
from ..scan import ScanFile
from ..streaming.change_feed import check_change_names
from ..streaming.columns import problems_of_columns
from ..streaming.commits import Commit, CommitKind, Part, single_files
from ..streaming.errors import cleaned_up, dropped, replaced
from ..streaming.positions import NOTHING, Order, Position
from ..table import TableScan
from .changes import CHANGE_FIELDS, Live, StreamFile, changes, inserts
from .scan import IcebergTableReader
from .table import IcebergVersion


class IcebergHistory:
    """See `StreamedTable`. A version is the id of a snapshot.

    Args:
        reader: of the newest version when the stream was opened
        scan: what the stream reads
        allows_more: the stream reads these columns alone, whatever others the table gets
    """

    def __init__(self, reader: IcebergTableReader, scan: TableScan, *, allows_more: bool) -> None:
        self._opened = reader.version
        self._scan = scan
        self._reads_changes = reader.reads_changes
        names = set(reader.column_names) - {one.name for one in CHANGE_FIELDS if self._reads_changes}
        self._are_all = not allows_more and names <= set(scan.columns)
        self._known_schemas = set(reader.version.table.schemas())
        self._snapshot: tuple[int, Sequence[StreamFile]] | None = None
        self._orders: dict[int, int] = {NOTHING: 0}
        """Sequence numbers of snapshots that the table may have forgotten."""
        self._use(reader.version.table)

    def _use(self, table: Table) -> None:
        """Go on with the current metadata."""
        self._snapshots = {one.snapshot_id: one for one in table.metadata.snapshots}
        self._reader = IcebergTableReader(replace(self._opened, table=table))
        self._select = self._reader.selecting(self._scan.where)

    @property
    def _table(self) -> Table:
        return self._reader.version.table

    @property
    def table_id(self) -> str:
        return str(self._opened.table.metadata.table_uuid)

    @property
    def name(self) -> str:
        return f"The Iceberg table {self._opened.address.uri}"

    # Versions -------------------------------------------------------------------------------------------

    def newest(self) -> int:
        """See `StreamedTable`."""
        table = load_if_there(self._opened.config, self._opened.address)
        if table is None:
            raise dropped(self.name)
        if str(table.metadata.table_uuid) != self.table_id:
            raise replaced(self.name, str(table.metadata.table_uuid), self.table_id)
        if table.metadata_location != self._table.metadata_location:
            self._use(table)
        branch = self._opened.address.branch
        head = table.metadata.snapshot_by_name(branch)
        if head is None and branch != MAIN_BRANCH:
            raise ConfigurationError(
                f"{self.name} no longer has the branch {branch!r}. Nothing more was read."
            )
        return NOTHING if head is None else head.snapshot_id

    def first_since(self, at: datetime, until: int) -> int | None:
        """See `StreamedTable`."""
        there = list(self._back_from(until))
        newer = [snapshot for snapshot in there if snapshot.timestamp_ms >= at.timestamp() * 1000]
        if newer and newer[-1] is there[-1] and not self._is_next(NOTHING, newer[-1]):
            raise ConfigurationError(
                f"startingTimestamp: the snapshots of the Iceberg table {self._opened.address.uri} from "
                f"{at.astimezone(timezone.utc).isoformat()} on have expired in part. Nothing was read. Give "
                "a later time, or a startingVersion; or neither, to begin with all rows that the table has."
            )
        return newer[-1].snapshot_id if newer else None

    def start_at(self, version: int, until: int) -> Position:
        """See `StreamedTable`."""
        if not any(snapshot.snapshot_id == version for snapshot in self._back_from(until)):
            raise ConfigurationError(
                f"startingVersion: the Iceberg table {self._opened.address.uri} has no snapshot {version} in "
                f"its branch {self._opened.address.branch!r}, or it has expired. Nothing was read."
            )
        return Position(version, 0)

    def _back_from(self, version: int) -> Iterator[Snapshot]:
        """Yield a snapshot and those before it, newest first, as far as they have not expired."""
        snapshot = self._snapshots.get(version)
        while snapshot is not None:
            yield snapshot
            snapshot = self._snapshots.get(snapshot.parent_snapshot_id or NOTHING)

    # Commits --------------------------------------------------------------------------------------------

    def after(self, version: int, until: int) -> Iterator[Commit[StreamFile]]:
        """See `StreamedTable`."""
        for snapshot in reversed(self._between(version, until)):
            yield self._commit(snapshot)

    def _between(self, version: int, until: int) -> list[Snapshot]:
        """Return the snapshots after one, up to another one, newest first."""
        found: list[Snapshot] = []
        for snapshot in self._back_from(until):
            if snapshot.snapshot_id == version:
                return found
            found.append(snapshot)
            if snapshot.parent_snapshot_id == version:
                return found
        if not found:
            raise self._expired(until)
        oldest = found[-1]
        if oldest.parent_snapshot_id is not None:
            raise self._expired(oldest.parent_snapshot_id)
        if version in self._snapshots:
            raise ConfigurationError(
                f"The branch {self._opened.address.branch!r} of the Iceberg table {self._opened.address.uri} "
                f"no longer has the snapshot {version}, up to which this stream has read it: it was rolled "
                "back, or replaced. Nothing more was read. Start with a new checkpoint."
            )
        if self._is_next(version, oldest):
            return found
        raise self._expired(version)

    def _is_next(self, version: int, snapshot: Snapshot) -> bool:
        """Return whether a snapshot without a parent follows a version, which has expired. Not all catalogs
        keep the parent then.
        """
        if version == NOTHING and self._table.metadata.format_version < 2:
            return True
        order = self._orders.get(version)
        return order is not None and snapshot.sequence_number == order + 1

    def order_of(self, version: int) -> int | None:
        """See `StreamedTable`."""
        snapshot = self._snapshots.get(version)
        return self._orders.get(version) if snapshot is None else snapshot.sequence_number

    def recall(self, version: int, order: Order) -> None:
        """See `StreamedTable`."""
        if isinstance(order, int):
            self._orders[version] = order

    def commit(self, version: int) -> Commit[StreamFile]:
        """See `StreamedTable`."""
        snapshot = self._snapshots.get(version)
        if snapshot is None:
            raise self._expired(version)
        return self._commit(snapshot)

    def _commit(self, snapshot: Snapshot) -> Commit[StreamFile]:
        number = snapshot.snapshot_id
        at = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, timezone.utc)
        shown = f"Snapshot {number} of the Iceberg table {self._opened.address.uri}"
        operation = None if snapshot.summary is None else snapshot.summary.operation
        kind = CommitKind.CHANGES if operation is None else _KINDS[operation]
        problems = "; ".join(self._problems(snapshot))
        files: Sequence[StreamFile] = ()
        if problems:
            pass
        elif operation is Operation.APPEND:
            files = self._reader.reading(lambda: list(self._read_added(snapshot)))
            files = list(inserts(files, snapshot)) if self._reads_changes else files
        elif self._reads_changes and kind is not CommitKind.ADDS:
            changed = tuple(self._changes(snapshot))
            return Commit(number, shown, CommitKind.ADDS, changed, is_whole=True, at=at)
        return Commit(number, shown, kind, files, other_schema=problems, at=at)

    def _changes(self, snapshot: Snapshot) -> Iterator[StreamFile]:
        before = self._snapshots.get(snapshot.parent_snapshot_id or NOTHING)
        if before is None and not self._is_next(NOTHING, snapshot):
            raise self._expired(snapshot.parent_snapshot_id)
        return changes(self._live(before), self._live(snapshot), snapshot)

    def _live(self, snapshot: Snapshot | None) -> Live:
        return {
            entry.data_file.file_path: StreamFile(entry, deletes)
            for entry, deletes in self._reader.entries(snapshot)
        }

    def _read_added(self, snapshot: Snapshot) -> Iterator[StreamFile]:
        io = self._table.io
        for manifest in snapshot.manifests(io):
            if manifest.content != ManifestContent.DATA or manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            for entry in MANIFEST_CACHE.read(io, manifest):
                is_own = entry.snapshot_id in (None, snapshot.snapshot_id)
                if entry.status == ManifestEntryStatus.ADDED and is_own:
                    yield StreamFile(entry)

    def _problems(self, snapshot: Snapshot) -> Iterator[str]:
        """Yield why the rows do not fit the columns of the stream. Those of schemas that the table had before
        do: the format allows no other changes.
        """
        number = snapshot.schema_id
        there = None if number is None or number in self._known_schemas else self._table.schemas().get(number)
        if there is not None:
            yield from problems_of_columns(
                _by_id(there), _by_id(self._opened.schema), self._scan.types.names, are_all=self._are_all
            )

    def joined(self, files: Iterable[ScanFile]) -> Iterable[ScanFile]:
        """See `StreamedTable`. A file is in one commit."""
        return files

    def snapshot(self, version: int, after: int, until: int | None) -> Iterator[Part[StreamFile]]:
        """See `StreamedTable`. Older files come first."""
        return single_files(self._files(version), after, until)

    def _files(self, version: int) -> Sequence[StreamFile]:
        if self._snapshot is None or self._snapshot[0] != version:
            snapshot = self._snapshots.get(version)
            if snapshot is None:
                raise self._expired(version)
            files = list(self._live(snapshot).values())
            files.sort(key=lambda file: (file.entry.sequence_number or 0, file.entry.data_file.file_path))
            self._snapshot = version, list(inserts(files, snapshot)) if self._reads_changes else files
        return self._snapshot[1]

    def select(self, file: StreamFile) -> ScanFile | None:
        """See `StreamedTable`."""
        found = self._select(file.entry, file.deletes)
        if found is None or not file.values:
            return found
        return replace(found, values=(*found.values, *file.values), only=file.only)

    def _expired(self, version: int | None) -> ConfigurationError:
        missing = "a snapshot" if version in (None, NOTHING) else f"the snapshot {version}"
        return cleaned_up(
            f"{self.name} no longer has {missing}, which this stream needs: it has expired before the stream "
            "had read it.",
            "the table keep its snapshots for longer (history.expire.max-snapshot-age-ms)",
        )


_KINDS = {
    Operation.APPEND: CommitKind.ADDS,
    Operation.REPLACE: CommitKind.ADDS,
    Operation.DELETE: CommitKind.DELETES,
    Operation.OVERWRITE: CommitKind.CHANGES,
}
"""Those of a `replace` are there before."""


def _by_id(schema: Schema) -> Mapping[int, NestedField]:
    return {field.field_id: field for field in schema.fields}


def with_change_fields(version: IcebergVersion) -> IcebergVersion:
    """Return the version with the columns of a changelog.

    Raises:
        ConfigurationError: the table has columns with their names, or no numbers of its snapshots.
    """
    if version.table.metadata.format_version < 2:
        raise ConfigurationError(
            f"changes: the Iceberg table {version.address.uri} has format version 1, whose snapshots have no "
            "sequence numbers. Nothing was read. Upgrade it to format version 2."
        )
    fields = version.schema.fields
    own, added = ([one.name for one in some] for some in (fields, CHANGE_FIELDS))
    check_change_names(f"Iceberg table {version.address.uri}", own, added, "changelog")
    return replace(version, schema=Schema(*fields, *CHANGE_FIELDS, schema_id=version.schema.schema_id))
