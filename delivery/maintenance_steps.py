"""Maintenance of a table: steps that each have their own interval.

Runs in the delivery process, for the stream whose lease it holds, after a delivery or when there is nothing
to deliver. A step that fails is reported and repeated the next time; no batch depends on it.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING

from ..committers.contract import ManifestState, StreamKey
from ..committers.errors import PenstockError
from ..committers.file_tables.compaction import (
    RECENT_BATCHES,
    CompactableTable,
    Compaction,
    CompactionPolicy,
)
from ..committers.file_tables.manifest import LakeManifest
from ..committers.maintenance import MaintenancePolicy, Step
from ..datasource.destinations import cleanup_of, paths_of
from ..datasource.sink import Destination, Maintainable
from ..datasource.stored.stored_table import Cleanable
from ..datasource.stored.table_access import TableAccess
from ..writers.parquet.compaction import SMALL
from ..writers.parquet.write_config import WriteConfig
from .compaction import TableFileRewriter
from .rewriting import GroupRewriter, InlineExecutor
from .stream_settings import StreamSettings, build_sink

if TYPE_CHECKING:
    from ..committers.store.sql import SqlManifestStore

ORPHAN_GRACE = timedelta(days=7)
"""The default of `penstock gc`."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of one run of a step."""

    step: str
    seconds: float
    done: str = ""
    error: PenstockError | None = None


class MaintenanceRunner:
    """The steps of one table. Each is due an interval after any process last did it.

    Args:
        is_wanted: whether to maintain the table; called when a step is due
        done: returns when each step was last done; steps that were never done are missing
        note: records durably that a step was done
        monotonic: clock in seconds, to measure the duration of a step
    """

    def __init__(
        self,
        steps: Sequence[Step],
        is_wanted: Callable[[], bool],
        done: Callable[[], Mapping[str, datetime]],
        note: Callable[[str, datetime], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steps = [step for step in steps if step.every_s > 0]
        self._is_wanted = is_wanted
        self._done = done
        self._note = note
        self._monotonic = monotonic
        self._tried_at: dict[str, datetime] = {}
        """Last attempts of this process, also failed ones, so that they are not repeated every minute."""

    def run_due(self, now: datetime, until: Callable[[], bool] = lambda: False) -> list[StepResult]:
        """Run the steps that are due, one after the other.

        Args:
            until: called before each step; True leaves the remaining steps for the next call

        Raises:
            RetryableError: the store cannot be read.
        """
        done, results = self._done(), list[StepResult]()
        for step in self._steps:
            if _is_within(step, done.get(step.name), now) or _is_within(
                step, self._tried_at.get(step.name), now
            ):
                continue
            if until():
                break
            self._tried_at[step.name] = now
            results.append(self._run(step, now, until))
        return results

    def _run(self, step: Step, now: datetime, until: Callable[[], bool]) -> StepResult:
        start, done = self._monotonic(), ""
        try:
            if step.decides_itself or self._is_wanted():
                done = step.run()
                if not until():  # otherwise the step may have ended early
                    self._note(step.name, now)
        except PenstockError as error:
            return StepResult(step.name, self._monotonic() - start, error=error)
        return StepResult(step.name, self._monotonic() - start, done)


def _is_within(step: Step, last: datetime | None, now: datetime) -> bool:
    """Return True if the interval since `last` has not passed. A time in the future does not count."""
    return last is not None and last <= now < last + timedelta(seconds=step.every_s)


# The steps of a table -----------------------------------------------------------------------------


def maintenance_runner(
    destination: Maintainable,
    store: SqlManifestStore,
    stream: StreamKey,
    policy: MaintenancePolicy,
    *,
    access: TableAccess | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    stop: Callable[[], bool] = lambda: False,
) -> MaintenanceRunner:
    """Return the maintenance of the stream's table.

    Args:
        access: options to open other tables of the query
        stop: True ends a compaction after the current group of files
    """
    context = StoredContext(store, stream, policy, now, stop, access or TableAccess({}, {}))
    steps = destination.maintenance_steps(context)
    is_wanted = destination.is_maintained if policy.is_wanted is None else lambda: policy.is_wanted is True
    done, note = partial(store.maintenance.done, stream), partial(store.maintenance.note, stream)
    return MaintenanceRunner(steps, is_wanted, done, note)


@dataclass(frozen=True, slots=True)
class StoredContext:
    """See `MaintenanceContext`."""

    store: SqlManifestStore
    stream: StreamKey
    policy: MaintenancePolicy
    now: Callable[[], datetime]
    stop: Callable[[], bool]
    access: TableAccess

    def compaction(
        self,
        table: CompactableTable,
        rewrite_config: Callable[[LakeManifest], WriteConfig | None],
        target_file_bytes: int,
    ) -> Step:
        rewriter = self.rewriter(rewrite_config)
        policy = CompactionPolicy(target_file_bytes, small_file_bytes=int(target_file_bytes * SMALL))
        compaction = Compaction(
            table, rewriter, policy, recent=lambda: self.store.history(self.stream, RECENT_BATCHES)
        )
        return Step("compact", self.policy.compact_s, lambda: compaction.run().summary())

    def rewriter(self, rewrite_config: Callable[[LakeManifest], WriteConfig | None]) -> TableFileRewriter:
        here = GroupRewriter(InlineExecutor(self.stop))
        return TableFileRewriter(self.stream.query_id, rewrite_config, here, self.stop)

    def sink_of(self, stream: StreamKey) -> Destination | None:
        status = next(iter(self.store.streams(key=stream)), None)
        if status is None:
            return None
        return build_sink(status, StreamSettings.parse(status.settings), self.access)

    def orphans(self, stored: Cleanable) -> Step:

        def run() -> str:
            cleaned = [key for key, _ in self.store.settings_of_table(self.stream.table_uri)]
            cleanup = cleanup_of(stored, self.store, cleaned)
            count = sum(cleanup.delete(cleanup.find(self.now(), ORPHAN_GRACE)))
            return f"deleted {count:,} orphan files" if count else ""

        return Step("orphans", self.policy.vacuum_s, run)

    def pending_names(self) -> set[str]:
        """Return the base names of files in manifests that are not committed yet."""
        streams = [key for key, _ in self.store.settings_of_table(self.stream.table_uri)]
        return {
            posixpath.basename(path)
            for stream in streams
            for manifest in self.store.manifests(stream, ManifestState.PREPARED)
            for path in paths_of(manifest)
        }
