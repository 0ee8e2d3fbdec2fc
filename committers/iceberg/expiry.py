"""Snapshot expiry: removes old snapshots of an Iceberg table, and deletes the files that only they need.

Runs after a commit, in the same process. pyiceberg's own expiry removes snapshots from the metadata but
deletes no files. The cost of a commit grows with the number of snapshots.

    plan      if there are enough snapshots, store the oldest ones that nothing retains, and the files that
              only they need
    commit    remove these snapshots, and nothing else, from the metadata in a separate commit
    delete    after a grace period, when no reader of these snapshots runs any more, delete the files, except
              those that the table needs again

Which files are unneeded is determined at plan and commit time, when both the expiring and the remaining
snapshots are known. This stays valid, because later snapshots take over only files of remaining ones. It is
also valid for readers of expired snapshots: a snapshot that expired earlier has an earlier grace period, and
files of one that expires later were still needed. So the delete step only checks the current metadata.

A crash before the commit leaves a plan of which snapshots still exist: it is dropped after a day. A crash
or an outage after the commit leaves a plan whose snapshots are removed: the next run detects that, checks
that no tag was lost with them, and starts the grace period. After a crash between deletions, the next run
continues at the position in the store. Two processes may do this at the same time: both plan, one commit
succeeds, and deleting a file twice is harmless. Files outside of the table's folders (see `deletion_guard`)
are not deleted, whatever the metadata or a plan in the store says: they may have been added in place and be
needed elsewhere. Files of snapshots that others have expired are not deleted either. With
`gc.enabled=false` nothing is done, except in a table that shares its data files with another one: no data
file of that one is deleted here.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.utils.properties import property_as_bool

from ..errors import PenstockError, RetryableError
from ..file_tables.shared_files import shared_with
from ..store.expiries import Expiry
from ..texts.safe_text import get_logger
from .deletion_guard import table_deletion_guard
from .expiry_commit import checks_refs, lost_refs, requirements_of, updates_of
from .file_deletion import delete_files, delete_old_metadata
from .reachability import ExpiredFiles, decode_expired, expired_files, needed_again
from .redaction import redacted
from .retention import snapshots_to_expire

logger = get_logger(__name__)

PLAN_KEPT_FOR = timedelta(days=1)
"""How long a plan without a commit is kept: longer than a process can be suspended before it commits."""


@dataclass(frozen=True, slots=True)
class ExpiryPolicy:
    """When snapshots expire and their files are deleted."""

    keep_snapshots_max: int = 20
    """This many of the newest snapshots are kept; older ones expire when there are more than that."""
    grace_s: float = 3600
    """Seconds between a snapshot's expiry and the deletion of its files: longer than any query reads."""
    files_per_run_max: int = 1000
    """Number of files deleted in one run; a commit waits for it."""


@dataclass(frozen=True, slots=True)
class Expired:
    """Result of one run."""

    snapshots: int = 0
    """Number of snapshots removed from the metadata."""
    files: int = 0
    """Number of files deleted."""


class ExpiryStore(Protocol):
    """Expiry records in the store. Each method is one short database transaction."""

    def put(self, expiry: Expiry) -> None: ...

    def add_deleted(self, expiry: Expiry, deleted: int) -> None: ...

    def remove(self, expiry: Expiry) -> None: ...

    def of_table(self, table_id: str, expired_before: datetime | None = None) -> Sequence[Expiry]: ...


class SnapshotExpiry:
    """Expires snapshots of one table. Runs on the driver and in the delivery process.

    Args:
        load_table: returns the current table from the catalog
        store: keeps the plans
        table_uri: for display
        now: clock, with a time zone
        in_short: formats an error without secrets
        new_id: returns a unique id for a plan
        check: raises an error if no snapshot may expire now
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
        check: Callable[[TableMetadata], None] = lambda _: None,
    ) -> None:
        self._load_table = load_table
        self._store = store
        self._uri = table_uri
        self._policy = policy
        self._now = now
        self._check = check
        self._in_short = in_short
        self._new_id = new_id

    def run(self) -> Expired:
        """Expire snapshots, and delete files whose grace period has ended. Idempotent.

        Called after a commit and in the delivery process. If another writer commits at the same time, the
        snapshots expire in the next run.

        Raises:
            RetryableError: catalog, storage or store cannot be reached; the next run continues.
            PenstockError: of `check`
        """
        with self._errors():
            table = self._load_table()
            properties = table.metadata.properties
            if not property_as_bool(properties, "gc.enabled", True) and shared_with(properties) is None:
                return Expired()
            due = self._due(table)
            return Expired(snapshots=self._expire(table), files=self._delete(table, due))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except PenstockError:
            raise
        except Exception as error:  # noqa: BLE001  catalog drivers raise errors of any type
            raise RetryableError(
                f"Old snapshots of the Iceberg table {self._uri} could not be expired: "
                f"{self._in_short(error)}. No batch is affected, and the next run continues. Check that the "
                "catalog and the storage are reachable, and that this user may delete files."
            ) from None

    # Plan and commit --------------------------------------------------------------------------------

    def _expire(self, table: Table) -> int:
        """Plan and commit; return how many snapshots were removed from the metadata."""
        now_ms = int(self._now().timestamp() * 1000)
        expiring = snapshots_to_expire(table.metadata, self._policy.keep_snapshots_max, now_ms)
        if not expiring:
            return 0
        self._check(table.metadata)
        unneeded = expired_files(table.io, table.metadata, expiring, table_deletion_guard(table).allows)
        plan = Expiry(
            expiry_id=self._new_id(),
            table_uri=self._uri,
            table_id=str(table.metadata.table_uuid),
            content=unneeded.encode(),
            planned_at=self._now(),
        )
        self._store.put(plan)
        if not checks_refs(table.catalog) and self._load_table().metadata.refs != table.metadata.refs:
            self._store.remove(plan)
            return 0
        try:
            response = table.catalog.commit_table(
                table, requirements_of(table, expiring), updates_of(table.metadata, expiring)
            )
        except CommitFailedException:
            self._store.remove(plan)
            return 0
        self._begin_grace(plan, unneeded, table, response.metadata)
        delete_old_metadata(table, response.metadata)
        return len(expiring)

    def _begin_grace(self, plan: Expiry, files: ExpiredFiles, table: Table, expired: TableMetadata) -> None:
        """Start the grace period of the files, unless a branch or tag was lost with their snapshots.

        If that cannot be checked, the plan stays unchanged, and the next runs check again, for a day.

        Args:
            expired: metadata after the commit
        """
        try:
            lost, before = lost_refs(table, expired, frozenset(files.snapshot_ids))
        except Exception as error:
            is_over = isinstance(error, FileNotFoundError) or self._now() - plan.planned_at > PLAN_KEPT_FOR
            if not is_over:
                raise
            self._store.remove(plan)
            logger.warning(
                "Snapshots of the Iceberg table %s have expired, but it can no longer be checked whether a "
                "tag or branch was set on one of them right before (%s). Their %d files are kept, for "
                "example %s. Penstock does not delete them later: if no tag or branch is missing, remove "
                "them with a tool that finds orphan files of a table.",
                self._uri,
                self._in_short(error),
                len(files.paths),
                next(iter(files.paths), "none"),
            )
            return
        if lost:
            self._store.remove(plan)
            logger.warning(
                "While snapshots of the Iceberg table %s expired, another user set %s on one of them, and "
                "the catalog has removed both. The files of these snapshots are kept. The metadata file %s "
                "still has the snapshots.",
                self._uri,
                ", ".join(lost),
                before,
            )
        else:
            self._store.put(replace(plan, expired_at=self._now()))

    # Delete -----------------------------------------------------------------------------------------

    def _due(self, table: Table) -> list[tuple[Expiry, ExpiredFiles]]:
        """Plans whose files can be deleted now. Also handles plans that a crash or an outage has left
        unfinished.
        """
        table_id, now = str(table.metadata.table_uuid), self._now()
        there = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
        due = []
        for expiry in self._store.of_table(table_id, now - timedelta(seconds=self._policy.grace_s)):
            files = decode_expired(expiry.content)
            if expiry.expired_at is not None:
                due.append((expiry, files))
            elif there.isdisjoint(files.snapshot_ids):
                self._begin_grace(expiry, files, table, table.metadata)
            elif now - expiry.planned_at > PLAN_KEPT_FOR:  # those that are gone are in a later plan
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
