"""The delivery of one stream: what is due, under which lease, into which table.

Runs in the delivery process. The lease of a stream is held only while there is something to do: of several
processes any free one takes it, and one that dies delays the stream for no longer than the duration of a
lease.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from ..committers.deliveries.contract import Lease
from ..committers.deliveries.deliverer import Compactor, StreamDelivery
from ..committers.deliveries.policy import DeliveryPolicy, due, is_put_off, policy_for
from ..committers.deliveries.results import Delivered, Failed
from ..committers.errors import (
    CommitStateUnknownError,
    FencedError,
    PenstockError,
    RetryableError,
)
from ..committers.protocol.commit_runner import Retry
from ..committers.requests.contract import Counters, CountsRequests
from ..committers.texts.safe_text import get_logger
from ..datasource.dead_letters import try_to_deliver_letters
from ..datasource.file_table import Compactable, SearchesByKey
from ..datasource.sink import Destination, WritesInCommit, check_same_table, open_table, target_of
from ..datasource.spark.checkpoint import Checkpoint
from .attempts import DeliveryAttempt, DeliveryReport, DeliveryRequest
from .context import DeliveryContext, OpenSpark
from .lease import HeldLease
from .stream_maintenance import MaintenanceThread, StreamMaintenance, is_maintenance_due
from .stream_settings import StreamSettings, build_letter_sink, build_sink, find_letters

if TYPE_CHECKING:
    from ..committers.store.sql import SqlManifestStore
    from ..committers.store.status import StreamStatus

logger = get_logger(__name__)

MAINTENANCE_S = 60.0
"""Minimum seconds between two maintenance runs of a stream that has no due batches."""


class StreamWorker:
    """Deliver one stream, attempt after attempt, never two at the same time."""

    def __init__(self, stream: StreamStatus, store: SqlManifestStore, context: DeliveryContext) -> None:
        self._key = stream.key
        self._store = store
        self._context = context
        self._settings_text: str | None = None
        self._settings = StreamSettings()
        self._sink: Destination | None = None
        self._policy = DeliveryPolicy()
        self._maintenance: StreamMaintenance | None = None
        self._maintenance_at = time.monotonic()
        self._has_warned = False
        self._held: HeldLease | None = None
        self._requests: list[Counters] = []
        """Of the writers of the current round."""
        self.stream = stream

    # Is there something to do? ----------------------------------------------------------------------

    def see(self, stream: StreamStatus) -> None:
        """Update the stream to what the store has now.

        Raises:
            PenstockError: the settings of the stream cannot be read.
        """
        self.stream = stream
        if stream.settings != self._settings_text:
            self._settings = StreamSettings.parse(stream.settings)
            self._settings_text = stream.settings
            self._sink = self._maintenance = None

    @property
    def is_decoupled(self) -> bool:
        return self._settings.is_decoupled

    @property
    def is_stalled(self) -> bool:
        """True if the running attempt hangs, so that its lease is no longer renewed."""
        return self._held is not None and self._held.is_stalled

    def request(self, now: datetime) -> DeliveryRequest | None:
        """Return what the stream needs now; None if nothing. Called every second, so it does no I/O."""
        if self._is_deliverable(now):
            if self.stream.waiting_since is not None:
                return DeliveryRequest("request")
            state = self.stream.delivery
            is_begun = state.tries > 0 or state.isolate_until >= 0
            if is_begun or self._is_due(now):
                return DeliveryRequest()
        is_wanted = self._context.settings.maintains and time.monotonic() >= self._maintenance_at
        if is_wanted and is_maintenance_due(self.stream, now):
            return DeliveryRequest(is_maintenance=True)
        return None

    def _is_due(self, now: datetime) -> bool:
        try:
            self._opened_sink()
        except PenstockError:  # the attempt raises it again, and stores it under the lease
            return True
        return due(self.stream.backlog, self._policy, now) is not None

    def _is_deliverable(self, now: datetime) -> bool:
        state = self.stream.delivery
        is_free = state.parked_at is None and not is_put_off(state, self._policy, now)
        return self.stream.backlog.batches > 0 and is_free

    # One attempt ------------------------------------------------------------------------------------

    def attempt(self, request: DeliveryRequest) -> DeliveryAttempt:
        """Acquire the lease, do what is requested, and release the lease.

        Raises:
            PenstockError: the stream cannot be delivered at all, for example because options are missing
                here.
        """
        store, attempt, self._held = self._store, DeliveryAttempt(), None
        lease = store.deliveries.acquire(self._key, self._context.holder, self._context.settings.lease_s)
        if lease is None:
            attempt.is_busy = True
            return attempt
        with HeldLease(store.deliveries, lease, self._context.settings.lease_s) as held:
            self._held = held
            try:
                if request.is_maintenance:
                    self._run_maintenance(held, attempt)
                else:
                    self._deliver(held, request, attempt)
            except FencedError as error:
                logger.info("Another process now delivers %s: %s", self._key, error)
                attempt.is_busy = True
            except (RetryableError, CommitStateUnknownError):
                raise
            except PenstockError as error:
                self._note(held.lease, error)
                raise
        return attempt

    def _deliver(self, held: HeldLease, request: DeliveryRequest, attempt: DeliveryAttempt) -> None:
        trigger = request.trigger
        while not self._context.stop.is_set():
            started = time.monotonic()
            result = self._round(held, trigger)
            if isinstance(result, Failed):
                attempt.failure = result
                self._context.on_failure(self.stream, result.error, self._wait_s(result.retry_at))
            if not isinstance(result, Delivered):
                return
            report = self._report(result, time.monotonic() - started)
            attempt.reports.append(report)
            self._context.on_delivery(report)
            held.check()
            self.deliver_letters()
            if request.up_to is not None and result.delivery.manifest.batch.batch_id >= request.up_to:
                return
            if trigger == "request":
                trigger = None

    def _run_maintenance(self, held: HeldLease, attempt: DeliveryAttempt) -> None:
        """Run the maintenance, which may take minutes, and deliver what becomes due in the meantime."""
        self._maintenance_at = time.monotonic() + MAINTENANCE_S
        self.deliver_letters()
        thread = MaintenanceThread(self._opened_maintenance())
        thread.start()
        try:
            while thread.is_alive():
                thread.join(self._context.settings.poll_s)
                self._deliver(held, DeliveryRequest(), attempt)
        finally:
            thread.join()
        if thread.error is not None:
            raise thread.error

    def _opened_maintenance(self) -> StreamMaintenance:
        if self._maintenance is None:
            self._maintenance = StreamMaintenance(
                self.stream, self._opened_sink(), self._store, self._context
            )
        return self._maintenance

    def _round(self, held: HeldLease, trigger: str | None) -> Delivered | Failed | None:
        held.check()
        store, context, sink = self._store, self._context, self._opened_sink()

        def check_running() -> None:
            if context.stop.is_set():
                raise RetryableError(
                    f"The delivery process was stopped while it sent rows of {self._key}. The next delivery "
                    "continues behind those that are acknowledged."
                )

        def check_progress() -> None:
            held.check()
            if not isinstance(table, CountsRequests):  # it checks that itself, also during an outage
                check_running()

        self._requests = []
        table = open_table(sink, store, held.lease, check_progress)
        if isinstance(table, WritesInCommit):
            table = table.supervised(check_progress)
        if isinstance(table, SearchesByKey):
            self._search_with_spark(held, table)
        if isinstance(table, CountsRequests):
            table = table.watched(self._on_sending, check_running)
        written = store.written_table(self._key)

        def check() -> None:
            held.check()
            check_same_table(table, self._key, written)

        def sleep(seconds: float) -> None:
            """Wait before the next attempt to commit, or until the process is stopped."""
            held.check()
            self._context.stop.wait(seconds)

        delivery = StreamDelivery(
            self._key,
            store,
            store.deliveries,
            table,
            self._policy,
            compact=self._compactor(held, table) if isinstance(table, Compactable) else None,
            on_start=partial(context.on_start, self.stream),
            check=check,
            last_checkpointed=self.last_checkpointed,
            verified_version=lambda: None if written is None else written.table_version,
            commit_retry=Retry(attempts_max=sink.options.commit_attempts_max),
            clock=context.clock,
            sleep=sleep,
        )
        return delivery.round(held.lease, trigger)

    def _on_sending(self, counters: Counters) -> None:
        self._requests.append(counters)
        self._context.on_sending(self.stream, counters)

    def deliver_letters(self) -> None:
        """Deliver the dead letters of committed batches. If that fails, the next delivery or maintenance does
        it.
        """
        if not self._settings.dead_letters or self._context.stop.is_set():
            return
        if not self._store.dead_letters.waiting(self._key):
            return
        letters = find_letters(self._store, self.stream, self._settings)
        if letters is None:
            return
        try:
            sink = build_letter_sink(letters, self.stream, self._context.access)
        except PenstockError as error:
            logger.warning("The dead letters of %s wait in the manifest store: %s", self._key, error)
            return
        try_to_deliver_letters(self._store, self._key, sink)

    def _report(self, delivered: Delivered, seconds: float) -> DeliveryReport:
        recent, letters = self._store.deliveries.recent(self._key, 1), self._store.dead_letters
        has_letters, first = bool(self._settings.dead_letters), delivered.delivery.manifest.batches[0]
        return DeliveryReport(
            self.stream,
            delivered,
            seconds,
            recent[0].oldest_prepared_at if recent else None,
            self._requests,
            letters.count(self._key, first.batch_id) if has_letters else 0,
            letters.count(self._key) if has_letters else 0,
        )

    def _wait_s(self, retry_at: datetime | None) -> float | None:
        return None if retry_at is None else max((retry_at - self._context.clock()).total_seconds(), 0.0)

    def _note(self, lease: Lease, error: PenstockError) -> None:
        """Store the error, where `penstock status` finds it."""
        deliveries = self._store.deliveries
        deliveries.set_state(lease, replace(deliveries.state(self._key), error=str(error)))

    # What it delivers with --------------------------------------------------------------------------

    def _opened_sink(self) -> Destination:
        if self._sink is None:
            self._sink = build_sink(self.stream, self._settings, self._context.access)
            self._policy = policy_for(target_of(self._sink), self._sink.options.delivery_policy)
        return self._sink

    def _compactor(self, held: HeldLease, table: Compactable) -> Compactor | None:
        from .compaction import DeliveryCompactor
        from .rewriting import GroupRewriter, LocalExecutor, SparkExecutor

        def on_progress(done: int, groups: int) -> None:
            held.check()
            if self._context.stop.is_set():
                raise RetryableError(
                    f"The delivery process was stopped when {done} of {groups} groups of small files of "
                    f"{self._key} were rewritten. The next delivery rewrites all of them."
                )

        if table.compact_with() == "none":
            return None
        if (spark := self._spark_for(table)) is not None:
            return DeliveryCompactor(table, GroupRewriter(SparkExecutor(spark, held.supervised_elsewhere)))
        return DeliveryCompactor(table, GroupRewriter(LocalExecutor(), on_progress))

    def _search_with_spark(self, held: HeldLease, table: SearchesByKey) -> None:
        if (spark := self._spark_for(table)) is not None:
            from .key_search import SparkSearch

            table.search_with(SparkSearch(spark, table.rewrite_config, held.supervised_elsewhere))

    def _spark_for(self, table: Compactable) -> OpenSpark | None:
        """Return what opens the session for the files of a table; None if its query does not want it."""
        if table.compact_with() != "spark":
            return None
        if self._context.spark is None and not self._has_warned:
            logger.warning(
                "The query of %s has compactWith=spark, but this delivery process has no Spark session and "
                "rewrites the small files itself. Start it with `penstock deliver --spark` or "
                "start_delivery(spark=...), or set compactWith=local.",
                self._key,
            )
            self._has_warned = True
        return self._context.spark

    def last_checkpointed(self) -> int:
        """Return the newest batch in the commit log of the query's checkpoint.

        Raises:
            CheckpointGoneError: the checkpoint no longer exists. Its batches wait for an operator.
            RetryableError: the checkpoint cannot be read now.
        """
        location = self._settings.checkpoint
        filesystem, root = self._opened_sink().open_filesystem(location)
        return Checkpoint(filesystem, root, location).last_commit(self._key.query_id)
