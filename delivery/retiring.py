"""Removes what a stream whose query has ended for good has left: `penstock retire`.

The order makes that a process may be killed at any point, and the command repeated: first what the store is
needed to find, last the records in the store. Each step finds what is still there. Rows in the destination
are never touched.

    claim      a run of its own, so that no driver prepares a batch any more
    related    the streams of its dead letters, each like this stream
    files      data files, staging tables and files of the row log that nothing references, of any age
    records    the fence or journal of the query in the destination
    store      batches, deliveries, progress, decisions: the stream itself
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from ..committers.cleaning.cleanup import Cleanup, ListedFile
from ..committers.crash_points import reach
from ..committers.dead_letters import resent_stream, skipped_stream
from ..committers.errors import RetryableError
from ..committers.row_log.sharing import row_log_in
from ..committers.store.sql import utc_now
from ..datasource.destinations import access_of, cleanup_of, destination_type, stored_table
from ..datasource.stored.stored_table import Cleanable
from .sources import remove_sources
from .stream_settings import StreamSettings, access_to_letters, build_sink, find_letters

if TYPE_CHECKING:
    from ..committers.contract import StreamKey
    from ..committers.store.sql import SqlManifestStore
    from ..committers.store.status import StreamStatus
    from ..datasource.destinations import QueryRecords
    from ..datasource.stored.stored_table import StoredTable
    from ..datasource.stored.table_access import TableAccess

_ANY_BATCH = 2**63 - 1


@dataclass(slots=True)
class Leftovers:
    """What a stream has left besides its rows, or what was removed of it."""

    files: list[str] = field(default_factory=list)
    """Data files, staging tables, files of the row log, each with its place."""
    records: list[str] = field(default_factory=list)
    """What the destination keeps of the query, such as a fence."""
    remains: list[str] = field(default_factory=list)
    """What is not removed, each with the reason."""

    def add(self, other: Leftovers) -> None:
        self.files += other.files
        self.records += other.records
        self.remains += other.remains


class Retirement:
    """Retires one stream.

    Args:
        held_lease: holds the lease of a stream for the block, and yields the holder's name
    """

    def __init__(
        self,
        store: SqlManifestStore,
        stream: StreamStatus,
        access: TableAccess,
        held_lease: Callable[[SqlManifestStore, StreamKey], AbstractContextManager[str]],
    ) -> None:
        self.stream = stream
        self._store = store
        self._access = access
        self._held_lease = held_lease
        self._settings = StreamSettings.parse(stream.settings)
        self._location = row_log_in(stream.settings)

    def related(self) -> list[Retirement]:
        """The streams of its dead letters, of what was sent again, and of its skipped batches."""
        key, letters = self.stream.key, find_letters(self._store, self.stream, self._settings)
        beside = [
            one
            for one in self._store.streams()
            if one.key == skipped_stream(key, one.key.table_uri) or (letters and one.key == letters.key)
        ]
        found = [(one, access_to_letters(one, self.stream, self._access)) for one in beside]
        own = replace(access_of(self.stream, self._access), streams={})
        found += [(one, own) for one in self._store.streams(key=resent_stream(key))]
        return [Retirement(self._store, one, access, self._held_lease) for one, access in found]

    def check(self) -> None:
        """
        Raises:
            RetryableError: something of the stream is not finished. Nothing was changed.
        """
        left = [
            what
            for one in (self.stream.key, *(related.stream.key for related in self.related()))
            for what in self._store.deliveries.left_to_finish(one)
        ]
        if skipped := self.stream.skipped.unacknowledged:
            left.append(
                f"{len(skipped):,} skipped batches that nobody has acknowledged (penstock acknowledge)"
            )
        if not left:
            return
        command = "deliver --once" if self._settings.is_decoupled else "recover"
        raise RetryableError(
            f"{self.stream.key} has {', '.join(left)}. Nothing was removed. To finish them: penstock "
            f"{command}. To give up a batch for good: penstock skip; all of them, once the checkpoint is "
            "gone: penstock abort. Then repeat the command."
        )

    def claim(self) -> None:
        """Let no driver of the query prepare a batch: one that still runs ends with `FencedError`."""
        self._store.claim(self.stream.key, f"retire-{uuid.uuid4()}")

    def find(self) -> Leftovers:
        """Return what `run` would remove. Changes nothing."""
        found = Leftovers()
        for related in self.related():
            found.add(related.find())
        stored = self._stored()
        if stored is not None:
            cleanup = self._cleanup(stored)
            unneeded = cleanup.find(utc_now(), timedelta()).unneeded
            found.files += map(self._named, unneeded)
            merged = sum(1 for _ in self._store.deliveries.with_sources(self.stream.key))
            found.files += [f"the merged files of {merged:,} deliveries"] if merged else []
        records = self._records()
        found.records += () if records is None else records.found()
        found.remains += self._remains()
        return found

    def run(self) -> Leftovers:
        """Remove everything, then the stream from the store. May be repeated after a crash.

        Raises:
            RetryableError: something is not finished, the destination does not answer, or another process
                holds the lease. The store keeps the stream.
            AccessRefusedError: the user may not remove something. The store keeps the stream.
        """
        self.check()
        done, last = Leftovers(), self._last_batch()
        with self._held_lease(self._store, self.stream.key) as holder:
            reach("retire.start", last)
            for related in self.related():
                done.add(related.run())
            reach("retire.related", last)
            self._delete_files(done)
            reach("retire.files", last)
            records = self._records()
            if records is not None and (found := records.found()):
                records.remove()
                done.records += found
            reach("retire.records", last)
            done.remains += self._remains()
            self._store.deliveries.forget(self.stream.key, holder)
        reach("retire.done", last)
        return done

    # Steps ------------------------------------------------------------------------------------------

    def _delete_files(self, done: Leftovers) -> None:
        stored, key = self._stored(), self.stream.key
        if stored is None:
            self._give_up_merged()
            return
        store = self._store
        merged = remove_sources(store, key, lambda: stored.cleanable(store), utc_now() + timedelta(days=1))
        done.files += [f"{merged:,} merged files"] if merged else []
        cleanup = self._cleanup(stored)
        found = cleanup.find(utc_now(), timedelta())
        for _ in cleanup.delete(found):
            pass
        done.files += map(self._named, found.unneeded)

    def _give_up_merged(self) -> None:
        """Without its table, nobody can tell which of the merged files are needed: they stay."""
        for delivery in self._store.deliveries.with_sources(self.stream.key):
            self._store.deliveries.sources_removed(delivery.delivery_id)

    def _cleanup(self, stored: Cleanable) -> Cleanup:
        return cleanup_of(stored, self._store, [self.stream.key], self._ended)

    def _ended(self) -> Mapping[str, int]:
        """See `Cleanup`. Files of a shared row log may be needed by other targets of the query."""
        others = None
        if self._location is not None:
            others = self._store.progress.settled_by_others(self.stream.key, self._location, has_ended=True)
        return {self.stream.key.query_id: _ANY_BATCH if others is None else others}

    def _stored(self) -> Cleanable | None:
        """The stored table, if files can be left; None if its table was dropped, so that its location tells
        nothing.
        """
        stored: StoredTable = stored_table(self.stream, self._access)
        if not isinstance(stored, Cleanable):
            return None
        return stored if stored.moves_rows() or stored.now() is not None else None

    def _records(self) -> QueryRecords | None:
        destination = destination_type(self.stream.key, self.stream.kind)
        if destination.records is None:
            return None
        sink = build_sink(self.stream, self._settings, self._access)
        return destination.records(self.stream.key, sink)

    def _remains(self) -> list[str]:
        stored, uri = stored_table(self.stream, self._access), self.stream.key.table_uri
        if isinstance(stored, Cleanable) and self._stored() is None:
            return [f"files in the location of {uri}, if any: there is no table that tells what it needs"]
        kept = destination_type(self.stream.key, self.stream.kind).remains
        return [f"the rows in {uri}", *([kept] if kept else [])]

    def _named(self, file: ListedFile) -> str:
        place = self._location or self.stream.key.table_uri
        return f"{file.path} ({place})"

    def _last_batch(self) -> int:
        newest = self._store.history(self.stream.key, 1)
        return newest[0].batch.batch_id if newest else -1
