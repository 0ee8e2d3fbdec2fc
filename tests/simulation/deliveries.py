"""Delivery processes of a simulation: the product's rounds, the way `penstock deliver` runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from tests.simulation.lakes import SimulatedLake
from tests.simulation.scheduler import HOUR_S, DiskFullError, UnreachableError
from tests.simulation.store_connection import StoreConnection, clock_of

from penstock.committers.contract import (
    DataFile,
    Manifest,
)
from penstock.committers.deliveries.contract import Lease
from penstock.committers.deliveries.deliverer import StreamDelivery
from penstock.committers.deliveries.results import Delivered, Failed
from penstock.committers.errors import (
    CheckpointGoneError,
    CheckpointMismatchError,
    CommitStateUnknownError,
    FencedError,
    PenstockError,
    RetryableError,
    TableChangedError,
)
from penstock.committers.protocol.commit_runner import Retry
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.sink import check_same_table, open_table
from penstock.delivery.compaction import DeliveryCompactor
from penstock.delivery.rewriting import GroupRewriter, RewriteTask, RewrittenFiles, Steps
from penstock.delivery.sources import remove_sources
from penstock.delivery.stream_settings import StreamSettings
from penstock.writers.parquet.compaction import RewriteGroup
from penstock.writers.parquet.file_names import FileNames

if TYPE_CHECKING:
    from tests.simulation.targets import Stream
    from tests.simulation.world import World

BUSY = "busy"
"""Another process has the lease."""

LOOKS_MAX = 100
"""Of the process that delivers the rest at the end: more than any history can need."""

FAILURES_MAX = 8
"""In a row, with no other process running."""

POLL_S = 5.0


class DeliveryProcess:
    """Delivers all decoupled streams, one after the other."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._scheduler = world.scheduler
        assert world.plan.delivery is not None
        self._plan = world.plan.delivery
        self._name = name

    # While things go wrong

    def main(self) -> None:
        """Some turns."""
        rng = self._scheduler.rng
        for _ in range(self._plan.turns):
            stream = rng.choice(self._world.streams)
            try:
                self.turn(stream, rng.choice((None, None, "request", "drain")))
                if rng.random() < 0.3:
                    self.remove_sources(stream, rng.choice((0.0, HOUR_S)))
            except PenstockError as error:
                self._judge(error, stream)
            self._scheduler.sleep(rng.choice((1.0, 1.0, 10.0, 60.0)))

    def turn(self, stream: Stream, trigger: str | None) -> Failed | str | None:
        """Deliver what is due, under the lease; how it failed, or BUSY."""
        store = stream.connect()
        if not StreamSettings.parse(store.settings(stream.key)).is_decoupled:
            return None
        lease = store.deliveries.acquire(stream.key, self._name, self._plan.lease_s)
        if lease is None:
            return BUSY
        try:
            while isinstance(result := self._round(stream, store, lease, trigger), Delivered):
                self._check_delivered(stream, result)
        except FencedError:
            return BUSY
        if isinstance(result, Failed):
            self._scheduler.log(f"  failed: {type(result.error).__name__}: {str(result.error)[:300]}")
            self._check_not_overtaken(stream, lease, result)
            if result.retry_at is None:
                self._scheduler.log("  parked")
        store.deliveries.release(lease)
        return result

    def _round(
        self, stream: Stream, store: StoreConnection, lease: Lease, trigger: str | None
    ) -> Delivered | Failed | None:
        scheduler = self._scheduler
        table = open_table(stream.target.sink(is_decoupled=True), cast(SqlManifestStore, store), lease)

        def check() -> None:
            self._keep(store, lease)
            check_same_table(table, stream.key, store.written_table(stream.key))

        def last_checkpointed() -> int:
            scheduler.step("read Spark's commits log")
            if stream.is_retired:
                raise CheckpointGoneError("the checkpoint was deleted")
            return max(stream.checkpoint.commits, default=-1)

        compactor = SimulatedCompactor(stream.lake, table)
        delivery = StreamDelivery(
            stream.key,
            cast(SqlManifestStore, store),
            store.deliveries,
            table,
            self._plan.options.delivery_policy,
            compact=compactor if stream.target.decoupled_options.compact_with == "local" else None,
            check=check,
            last_checkpointed=last_checkpointed,
            commit_retry=Retry(attempts_max=self._plan.options.commit_attempts_max),
            clock=clock_of(scheduler),
            sleep=scheduler.sleep,
            rng=scheduler.rng,
        )
        return delivery.round(lease, trigger)

    def _keep(self, store: StoreConnection, lease: Lease) -> None:
        """The thread that renews the lease does so now and then; only that it is lost ends a round."""
        if self._scheduler.rng.random() < 0.5:
            try:
                store.deliveries.renew(lease, self._plan.lease_s)
            except (RetryableError, CommitStateUnknownError):
                return

    def _check_delivered(self, stream: Stream, delivered: Delivered) -> None:
        """With `deliverAfterCheckpoint`, nothing goes before Spark's own log."""
        last = delivered.delivery.manifest.batch.batch_id
        self._scheduler.log(f"  delivered up to batch {last}: {type(delivered.outcome).__name__}")
        is_changed = stream.is_diverged or stream.is_retired or "lose_record" in self._world.plan.events
        if self._plan.options.deliver_after_checkpoint and not is_changed:
            newest = max(stream.checkpoint.commits, default=-1)
            assert last <= newest or self._world.plan.is_mixed, f"delivered batch {last} before Spark's log"

    def _check_not_overtaken(self, stream: Stream, lease: Lease, failed: Failed) -> None:
        """A process that has lost its lease records nothing, so it cannot stop the one that has taken it."""
        is_ours = stream.target.is_decoupled_always and self._world.may_send_in_commit
        if "Another process delivers" in str(failed.error) and not is_ours:  # a coupled driver has no lease
            self._world.problems.append(
                f"{lease.holder} was stopped although it has the lease: {failed.error}"
            )

    def remove_sources(self, stream: Stream, grace_s: float) -> None:
        """Of the deliveries that were committed before the grace period."""
        store, lake = stream.connect(), stream.lake
        if not lake.exists:
            return
        deleted = remove_sources(
            cast(SqlManifestStore, store),
            stream.key,
            lambda: lake.cleanable_table(store),
            clock_of(self._scheduler)() - timedelta(seconds=grace_s),
        )
        self._scheduler.log(f"  {deleted} replaced files deleted")

    def _judge(self, error: PenstockError, stream: Stream) -> None:
        self._scheduler.log(f"  {type(error).__name__}: {str(error)[:300]}")
        is_passing = isinstance(error, (RetryableError, CommitStateUnknownError, FencedError))
        is_gone = isinstance(error, CheckpointGoneError) and stream.is_retired
        is_back = isinstance(error, TableChangedError) and stream.events.was_rolled_back
        if not (is_passing or is_gone or is_back):
            self._world.problems.append(f"a delivery process: {error!r}")

    # Healing

    def deliver_rest(self, stream: Stream, is_over: Callable[[], bool]) -> None:
        """Until nothing waits any more, with an operator at hand.

        Args:
            is_over: has the query ended, which prepares batches meanwhile?
        """
        result: object = None
        failures = 0
        for _ in range(LOOKS_MAX):
            was_over = is_over()
            if stream.store.deliveries.state(stream.key).parked_at is not None:
                stream.store.deliveries.retry(stream.key, "operator", "again")
            try:
                result = self.turn(stream, "drain")
            except CheckpointGoneError:
                stream.events.act("abort")
                return
            if was_over and result is None:
                return
            failures = failures + 1 if isinstance(result, Failed) else 0
            if (
                was_over
                and isinstance(result, Failed)
                and (result.retry_at is None or failures > FAILURES_MAX)
            ):
                self._mend(stream, result.error)
            if stream.is_stuck:
                return
            self._scheduler.sleep(POLL_S)
        stream.problems.append(f"its deliveries do not end: {result}")

    def _mend(self, stream: Stream, error: PenstockError) -> None:
        """What an operator does when a stream is parked, or fails again and again."""
        events = stream.events
        # With an unfinished delivery a table that has changed is not parked for, but tried again.
        has_changed = isinstance(error, TableChangedError) or "--accept-table" in str(error)
        if has_changed and events.was_rolled_back and not stream.is_accepted:
            events.noticed = True
            events.accept_table(stream)
        elif has_changed and events.skip_refused(stream):
            self._scheduler.log("  the operator gives up the first batch")
        elif "To trust the table, run `penstock recover`" in str(error) and not stream.is_diverged:
            events.recover()
        elif isinstance(error, (CheckpointMismatchError, RetryableError)) and stream.is_diverged:
            stream.is_stuck = True  # two copies of a checkpoint deliver under one query id
        else:
            stream.problems.append(f"its deliveries end with {error!r}")
            stream.is_stuck = True


class SimulatedCompactor:
    """The product's compaction over files that are nothing but ids."""

    def __init__(self, lake: SimulatedLake, table: Any) -> None:
        self._lake = lake
        self._table = table

    def __call__(self, manifest: Manifest, run_id: str) -> Manifest | None:
        return DeliveryCompactor(self._table, GroupRewriter(self._rewrite))(manifest, run_id)

    def _rewrite(self, task: RewriteTask, groups: Sequence[RewriteGroup], done: RewrittenFiles) -> Steps:
        try:
            for group in groups:
                done[group.number] = (self._rewrite_one(group, task.names_of(group)),)
        except (UnreachableError, DiskFullError, FileNotFoundError) as error:
            self._delete([file for files in done.values() for file in files])
            raise RetryableError(f"compaction: {error!r}") from error
        yield len(done)

    def _rewrite_one(self, group: RewriteGroup, names: FileNames) -> DataFile:
        objects = self._lake.objects
        contents = [objects.get(self._place(source.path)).content for source in group.sources]
        ids = tuple([row_id for content in contents for row_id in content])
        name = str(names.name(0, "zstd"))
        objects.put(self._place(name), ids, size_bytes=len(ids))
        return DataFile(name, len(ids), len(ids))

    def _delete(self, files: Sequence[DataFile]) -> None:
        """As far as the storage answers; the rest is left to clean-up."""
        for file in files:
            try:
                self._lake.objects.delete(self._place(file.path))
            except (UnreachableError, DiskFullError):
                return

    def _place(self, path: str) -> str:
        return f"{self._lake.data_location.rstrip('/')}/{path}"
