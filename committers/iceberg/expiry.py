"""Snapshot expiry: old snapshots of an Iceberg table, and the files that only they need, go.

Runs after a commit, where the commit ran. pyiceberg's own expiry takes snapshots out of the metadata and
deletes no file; and every commit costs more the more snapshots there are.

    plan      once there are enough of them, the oldest snapshots that nothing holds, and the files that only
              they need, are written down in the store
    commit    one commit of its own takes these snapshots, and nothing else, out of the metadata
    delete    a grace period later, when no reader of these snapshots runs any more, the files are deleted,
              but for those that the table needs by then

What is unneeded is found out while plan and commit have both sides in hand, the snapshots that go and those
that stay. It stays so: later snapshots take files over from those that stayed then. And it holds for readers
too: who reads a snapshot that expired earlier has a grace period that ends earlier, and the files of one that
expires later were not unneeded. So deleting asks the metadata as it is, and no expired snapshot.

A crash before the commit leaves a plan whose snapshots are all there: it is dropped after a day. A crash
after it, or an outage, leaves one whose snapshots are gone: the next run sees that and checks that no tag was
lost with them, and the grace period starts then. A crash between deletions starts again where the store says.
Two processes may do all this at once: both plan, one commit lands, and deleting a file twice does no harm.

Not deleted: files outside of the table's folders (see `deletion_guard`), whatever the metadata or a plan in
the store says: somebody may have added them in place and need them elsewhere. Nor files of snapshots that
somebody else has expired. With `gc.enabled=false` nothing happens.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal, Protocol

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePartitionStatisticsUpdate,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
    ValidatableTableRequirement,
)
from pyiceberg.utils.properties import property_as_bool

from ..errors import PenstockError, RetryableError
from ..safe_text import get_logger
from ..store.expiries import Expiry
from .deletion_guard import table_deletion_guard
from .file_io import TableFileIO
from .reachability import ExpiredFiles, decode_expired, expired_files, needed_again
from .redaction import redacted
from .retention import snapshots_by_id, snapshots_to_expire

logger = get_logger(__name__)

PLAN_KEPT_FOR = timedelta(days=1)
"""How long a plan whose commit has not landed is kept: longer than any process pauses before it commits."""
DELETING_THREADS = 8


@dataclass(frozen=True, slots=True)
class ExpiryPolicy:
    """When snapshots expire, and their files go."""

    keep_snapshots_max: int = 20
    """So many of the newest snapshots are kept; older ones go once there are more of them than that."""
    grace_s: float = 3600
    """Seconds between a snapshot's expiry and the deletion of its files: longer than any query reads."""
    files_per_run_max: int = 1000
    """So many files are deleted in one run, which a commit waits for."""


@dataclass(frozen=True, slots=True)
class Expired:
    """What one run has done."""

    snapshots: int = 0
    """Taken out of the metadata."""
    files: int = 0
    """Deleted."""


class ExpiryStore(Protocol):
    """The store, as expiry needs it. Every method is one short database transaction."""

    def put(self, expiry: Expiry) -> None: ...

    def add_deleted(self, expiry: Expiry, deleted: int) -> None: ...

    def remove(self, expiry: Expiry) -> None: ...

    def of_table(self, table_id: str, expired_before: datetime | None = None) -> Sequence[Expiry]: ...


class SnapshotExpiry:
    """Expires snapshots of one table. Runs on the driver, and in the delivery process.

    Args:
        load_table: the table as the catalog has it now
        store: where plans are written down
        table_uri: for people
        now: clock, with a time zone
        in_short: an error in words without secrets
        new_id: makes a unique name for a plan
    """

    def __init__(
        self,
        load_table: Callable[[], Table],
        store: ExpiryStore,
        table_uri: str,
        policy: ExpiryPolicy,
        now: Callable[[], datetime],
        in_short: Callable[[BaseException], str] = lambda error: redacted(error, {}),
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self._load_table = load_table
        self._store = store
        self._uri = table_uri
        self._policy = policy
        self._now = now
        self._in_short = in_short
        self._new_id = new_id

    def run(self) -> Expired:
        """Expire what may go, and delete what has been expired for long enough. Idempotent.

        Called after a commit, and whenever there is time. Another writer's commit at the same time only
        means that the snapshots go next time.

        Raises:
            RetryableError: catalog, storage or store cannot be reached; the next run goes on.
        """
        with self._errors():
            table = self._load_table()
            if not property_as_bool(table.metadata.properties, "gc.enabled", True):
                return Expired()
            due = self._due(table)
            return Expired(snapshots=self._expire(table), files=self._delete(table, due))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except PenstockError:
            raise
        except Exception as error:  # noqa: BLE001  the drivers of many catalogs raise what they like
            raise RetryableError(
                f"Old snapshots of the Iceberg table {self._uri} could not be expired: "
                f"{self._in_short(error)}. No batch is affected, and the next run goes on. Check that the "
                "catalog and the storage are reachable, and that this user may delete files."
            ) from None

    # Plan and commit --------------------------------------------------------------------------------

    def _expire(self, table: Table) -> int:
        """How many snapshots this run has taken out of the metadata."""
        now_ms = int(self._now().timestamp() * 1000)
        expiring = snapshots_to_expire(table.metadata, self._policy.keep_snapshots_max, now_ms)
        if not expiring:
            return 0
        unneeded = expired_files(table.io, table.metadata, expiring, table_deletion_guard(table).allows)
        plan = Expiry(
            expiry_id=self._new_id(),
            table_uri=self._uri,
            table_id=str(table.metadata.table_uuid),
            content=unneeded.encode(),
            planned_at=self._now(),
        )
        self._store.put(plan)
        if not _checks_refs(table.catalog) and self._load_table().metadata.refs != table.metadata.refs:
            self._store.remove(plan)
            return 0
        try:
            response = table.catalog.commit_table(
                table, _requirements(table, expiring), _updates(table.metadata, expiring)
            )
        except CommitFailedException:
            self._store.remove(plan)
            return 0
        self._begin_grace(plan, unneeded, table, response.metadata)
        delete_old_metadata(table, response.metadata)
        return len(expiring)

    def _begin_grace(self, plan: Expiry, files: ExpiredFiles, table: Table, expired: TableMetadata) -> None:
        """Start the grace period of the files, unless a branch or tag was lost with their snapshots.

        Where that cannot be checked, the plan stays as it is, and the next run checks it, for a day.

        Args:
            expired: metadata after the commit
        """
        try:
            lost, before = _lost_refs(table, expired, frozenset(files.snapshot_ids))
        except Exception as error:
            is_over = isinstance(error, FileNotFoundError) or self._now() - plan.planned_at > PLAN_KEPT_FOR
            if not is_over:
                raise
            self._store.remove(plan)
            logger.warning(
                "Snapshots of the Iceberg table %s have expired, and it can no longer be checked whether "
                "somebody set a tag or branch on one of them right before (%s). Their %d files stay, for "
                "example %s. Penstock does not delete them later: if no tag or branch is missing, remove "
                "them with a tool that finds the orphan files of a table.",
                self._uri,
                self._in_short(error),
                len(files.paths),
                next(iter(files.paths), "none"),
            )
            return
        if lost:
            self._store.remove(plan)
            logger.warning(
                "While snapshots of the Iceberg table %s expired, somebody set %s on one of them, and the "
                "catalog has removed both. The files stay: no file of these snapshots is deleted. The "
                "metadata file %s still has the snapshots.",
                self._uri,
                ", ".join(lost),
                before,
            )
        else:
            self._store.put(replace(plan, expired_at=self._now()))

    # Delete -----------------------------------------------------------------------------------------

    def _due(self, table: Table) -> list[tuple[Expiry, ExpiredFiles]]:
        """What can be deleted now; sees to plans that a crash or an outage has left on the way."""
        table_id, now = str(table.metadata.table_uuid), self._now()
        there = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
        due = []
        for expiry in self._store.of_table(table_id, now - timedelta(seconds=self._policy.grace_s)):
            files = decode_expired(expiry.content)
            if expiry.expired_at is not None:
                due.append((expiry, files))
            elif there.isdisjoint(files.snapshot_ids):
                self._begin_grace(expiry, files, table, table.metadata)
            elif there.issuperset(files.snapshot_ids) and now - expiry.planned_at > PLAN_KEPT_FOR:
                self._store.remove(expiry)
        return due

    def _delete(self, table: Table, due: Sequence[tuple[Expiry, ExpiredFiles]]) -> int:
        deleted, deletion_guard = 0, table_deletion_guard(table)
        for expiry, files in due:
            left = self._policy.files_per_run_max - deleted
            if left <= 0:
                break
            needed = needed_again(table.io, table.metadata, files)
            end = expiry.deleted + left
            chunk = [path for path in files.paths[expiry.deleted : end] if path not in needed]
            deleted += delete_files(table.io, deletion_guard.allowed(chunk))
            if end < len(files.paths):
                self._store.add_deleted(expiry, end)
            else:
                self._store.remove(expiry)
        return deleted


def delete_old_metadata(table: Table, new: TableMetadata) -> None:
    """Delete the metadata files that fell out of the metadata log after `table`, in S3 by and by.

    For commits that do not go through pyiceberg's own, which does this. Does nothing unless the table has
    `write.metadata.delete-after-commit.enabled`.
    """
    is_enabled = property_as_bool(
        new.properties,
        TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED,
        TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED_DEFAULT,
    )
    if not is_enabled:
        return
    kept = {entry.metadata_file for entry in new.metadata_log}
    log = table.metadata.metadata_log
    gone = table_deletion_guard(table).allowed(
        entry.metadata_file for entry in log if entry.metadata_file not in kept
    )
    if isinstance(table.io, TableFileIO):
        table.io.delete_soon(gone)
    else:
        delete_files(table.io, gone)


def delete_files(io: FileIO, paths: Sequence[str]) -> int:
    """Delete files; the number deleted. Files already gone are no error.

    Args:
        paths: let through by the table's gate, or of files that this process has just written
    """

    def delete(path: str) -> bool:
        try:
            io.delete(path)
        except FileNotFoundError:
            return False
        return True

    if not paths:
        return 0
    with ThreadPoolExecutor(DELETING_THREADS) as pool:
        return sum(pool.map(delete, paths))


# What is sent to the catalog ------------------------------------------------------------------------


class _AssertAsPlanned(ValidatableTableRequirement):
    """No branch or tag was added, moved or given another retention, and the snapshots are there.

    Taking out a snapshot takes out its branches and tags too, and of what Iceberg's own requirements can say,
    nothing keeps a tag that was set meanwhile. So a catalog that runs in this process checks this as well; a
    server would not know it.
    """

    type: Literal["assert-as-planned"] = "assert-as-planned"
    refs: dict[str, SnapshotRef]
    snapshot_ids: frozenset[int]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        if base_metadata is None or base_metadata.refs != self.refs:
            raise CommitFailedException("Requirement failed: branches or tags have changed")
        if not self.snapshot_ids.issubset(snapshots_by_id(base_metadata)):
            raise CommitFailedException("Requirement failed: the snapshots have expired already")


def _checks_refs(catalog: Catalog) -> bool:
    """Return True if the catalog checks requirements in this process, and so knows `_AssertAsPlanned`."""
    return isinstance(catalog, MetastoreCatalog)


def _lost_refs(table: Table, expired: TableMetadata, gone: frozenset[int]) -> tuple[list[str], str]:
    """Branches and tags that were set on an expired snapshot right before the commit, and where they are.

    A server removes them with the snapshot. The newest metadata file with the snapshots still has them.

    Args:
        expired: metadata after the commit
        gone: the expired snapshots

    Raises:
        FileNotFoundError: the table has no metadata file with the snapshots any more.
    """
    if _checks_refs(table.catalog) or not expired.metadata_log:
        return [], ""
    for entry in reversed(expired.metadata_log):
        before = entry.metadata_file
        if before == table.metadata_location:
            return [], before
        metadata = FromInputFile.table_metadata(table.io.new_input(before))
        if not gone.isdisjoint(snapshots_by_id(metadata)):
            lost = [name for name, ref in metadata.refs.items() if ref.snapshot_id in gone]
            return sorted(map(repr, lost)), before
    raise FileNotFoundError("no metadata file of the table has the snapshots any more")


def _requirements(table: Table, expiring: Sequence[Snapshot]) -> tuple[TableRequirement, ...]:
    refs = table.metadata.refs
    requirements: list[TableRequirement] = [AssertTableUUID(uuid=table.metadata.table_uuid)]
    requirements += [
        AssertRefSnapshotId(ref=name, snapshot_id=ref.snapshot_id)  # type: ignore[call-arg]
        for name, ref in refs.items()
    ]
    if _checks_refs(table.catalog):
        gone = frozenset([snapshot.snapshot_id for snapshot in expiring])
        requirements.append(_AssertAsPlanned(refs=refs, snapshot_ids=gone))  # type: ignore[arg-type]
    return tuple(requirements)


def _updates(metadata: TableMetadata, expiring: Sequence[Snapshot]) -> tuple[TableUpdate, ...]:
    """Statistics of partitions are taken out by hand: pyiceberg takes out the others with the snapshot."""
    gone = [snapshot.snapshot_id for snapshot in expiring]
    with_statistics = {file.snapshot_id for file in metadata.partition_statistics}.intersection(gone)
    statistics = [
        RemovePartitionStatisticsUpdate(snapshot_id=one)  # type: ignore[call-arg]
        for one in sorted(with_statistics)
    ]
    return (*statistics, RemoveSnapshotsUpdate(snapshot_ids=gone))  # type: ignore[call-arg]
