"""The delivery of one stream: what is due, under which lease, into which table.

Runs in the delivery process. A stream is leased only while there is something to do: with several processes
whichever is free takes it, and one that dies in the middle holds it up for no longer than a lease lasts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ...committers.contract import Lease
from ...committers.delivery.deliverer import Compactor, Delivered, Failed, StreamDelivery
from ...committers.delivery.policy import DeliveryPolicy, due
from ...committers.errors import (
    CommitStateUnknownError,
    ConfigurationError,
    FencedError,
    PenstockError,
    RetryableError,
)
from ...committers.two_phase import Retry
from ..checkpoint import Checkpoint
from ..sinks.sink import Sink, check_same_table
from ..table_access import TableAccess
from .lease import HeldLease
from .stream_settings import StreamSettings, build_sink
from .upkeep import Upkeep, UpkeepThread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...committers.store.sql import SqlManifestStore, StreamStatus

logger = logging.getLogger(__name__)

UPKEEP_S = 60.0
"""How often an idle stream is looked after, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """How a delivery process works."""

    parallel: int = 2
    """Streams that are delivered at once."""
    lease_s: float = 10.0
    """After so long without a sign of life another process takes a stream over."""
    poll_s: float = 1.0
    """Between two looks at the store."""
    maintains: bool = True
    """Look after the tables too, where their options want it."""

    def __post_init__(self) -> None:
        if not 1 <= self.parallel <= 64:
            raise ConfigurationError("The number of streams to deliver at once must be from 1 to 64.")
        if not 1 <= self.lease_s <= 3600:
            raise ConfigurationError("A lease must last from 1 to 3600 seconds.")


@dataclass(frozen=True, slots=True)
class DeliveryOrder:
    """What a turn is for."""

    trigger: str | None = None
    """Deliver what is there now, and why; None: what the policy says."""
    up_to: int | None = None
    """End once this batch is delivered: later ones came in meanwhile."""
    is_upkeep: bool = False
    """Deliver nothing: remove files and records that are not needed any more, look after the table."""


@dataclass(frozen=True, slots=True)
class Landing:
    """One delivery that this process has landed, with what it took."""

    stream: StreamStatus
    delivered: Delivered
    seconds: float
    oldest_prepared_at: datetime | None


@dataclass(slots=True)
class Turn:
    """How one turn of a stream went."""

    landings: list[Landing] = field(default_factory=list)
    failure: Failed | None = None
    is_busy: bool = False
    """Another process holds the lease."""

    @property
    def has_done_something(self) -> bool:
        return bool(self.landings) or self.failure is not None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all streams of one delivery process have in common."""

    store: SqlManifestStore
    access: TableAccess
    holder: str
    """Unique to this process."""
    settings: ServiceSettings
    stop: threading.Event
    clock: Callable[[], datetime]
    landed: Callable[[Landing], None]
    failed: Callable[[StreamStatus, Exception, bool], None]
    """Stream, error, is it parked now?"""
    spark: SparkSession | None = None


class StreamWorker:
    """Delivers one stream, turn after turn; never two turns at once."""

    def __init__(self, stream: StreamStatus, around: Surroundings) -> None:
        self._key = stream.key
        self._around = around
        self._settings_text: str | None = None
        self._settings = StreamSettings()
        self._sink: Sink[Any] | None = None
        self._policy = DeliveryPolicy()
        self._upkeep: Upkeep | None = None
        self._upkeep_at = time.monotonic()
        self.stream = stream

    # Is there something to do? ----------------------------------------------------------------------

    def see(self, stream: StreamStatus) -> None:
        """Take note of how the store has the stream now.

        Raises:
            PenstockError: its settings cannot be read.
        """
        self.stream = stream
        if stream.settings != self._settings_text:
            self._settings = StreamSettings.parse(stream.settings)
            self._settings_text = stream.settings
            self._sink = self._upkeep = None

    @property
    def is_decoupled(self) -> bool:
        return self._settings.is_decoupled

    def order(self, now: datetime) -> DeliveryOrder | None:
        """What the stream needs now; None if nothing. Asked each second: it looks nowhere."""
        if self._is_deliverable(now):
            if self.stream.waiting_since is not None:
                return DeliveryOrder("request")
            state = self.stream.delivery
            is_begun = state.tries > 0 or state.alone_up_to >= 0
            if is_begun or self._is_due(now):
                return DeliveryOrder()
        if self._around.settings.maintains and time.monotonic() >= self._upkeep_at:
            return DeliveryOrder(is_upkeep=True)
        return None

    def _is_due(self, now: datetime) -> bool:
        try:
            self._opened_sink()
        except PenstockError:  # the turn raises it again, and notes it under the lease
            return True
        return due(self.stream.backlog, self._policy, now) is not None

    def _is_deliverable(self, now: datetime) -> bool:
        state = self.stream.delivery
        is_put_off = state.parked_at is not None or (state.retry_at is not None and now < state.retry_at)
        return self.stream.backlog.batches > 0 and not is_put_off

    # One turn ---------------------------------------------------------------------------------------

    def turn(self, order: DeliveryOrder) -> Turn:
        """Take the lease, do what the order says, give the lease back.

        Raises:
            PenstockError: the stream cannot be delivered at all, such as for options that are missing here.
        """
        store, turn = self._around.store, Turn()
        lease = store.deliveries.acquire(self._key, self._around.holder, self._around.settings.lease_s)
        if lease is None:
            turn.is_busy = True
            return turn
        with HeldLease(store.deliveries, lease, self._around.settings.lease_s) as held:
            try:
                if order.is_upkeep:
                    self._look_after(held, turn)
                else:
                    self._deliver(held, order, turn)
            except FencedError as error:
                logger.info("Another process delivers %s now: %s", self._key, error)
                turn.is_busy = True
            except (RetryableError, CommitStateUnknownError):
                raise
            except PenstockError as error:
                self._note(held.lease, error)
                raise
        return turn

    def _deliver(self, held: HeldLease, order: DeliveryOrder, turn: Turn) -> None:
        trigger = order.trigger
        while not self._around.stop.is_set():
            started = time.monotonic()
            result = self._round(held, trigger)
            if isinstance(result, Failed):
                turn.failure = result
                self._around.failed(self.stream, result.error, result.retry_at is None)
            if not isinstance(result, Delivered):
                return
            landing = self._landing(result, time.monotonic() - started)
            turn.landings.append(landing)
            self._around.landed(landing)
            held.check()
            if order.up_to is not None and result.delivery.manifest.batch.batch_id >= order.up_to:
                return
            if trigger == "request":
                trigger = None

    def _look_after(self, held: HeldLease, turn: Turn) -> None:
        """Upkeep, and what becomes due meanwhile: it may take minutes."""
        self._upkeep_at = time.monotonic() + UPKEEP_S
        thread = UpkeepThread(self._opened_upkeep())
        thread.start()
        try:
            while thread.is_alive():
                thread.join(self._around.settings.poll_s)
                self._deliver(held, DeliveryOrder(), turn)
        finally:
            thread.join()
        if thread.error is not None:
            raise thread.error

    def _opened_upkeep(self) -> Upkeep:
        if self._upkeep is None:
            around = self._around
            self._upkeep = Upkeep(
                around.store,
                self.stream,
                self._opened_sink(),
                around.access,
                around.clock,
                around.stop.is_set,
            )
        return self._upkeep

    def _round(self, held: HeldLease, trigger: str | None) -> Delivered | Failed | None:
        around, sink = self._around, self._opened_sink()
        table = sink.open_table()

        written = around.store.written_table(self._key)

        def check() -> None:
            held.check()
            check_same_table(table, self._key, written)

        delivery = StreamDelivery(
            self._key,
            around.store,
            around.store.deliveries,
            table,
            self._policy,
            compact=self._compactor(held, sink, table),
            check=check,
            last_checkpointed=self.last_checkpointed,
            seen_version=lambda: None if written is None else written.table_version,
            commit_retry=Retry(attempts_max=sink.options.commit_attempts_max),
            clock=around.clock,
            sleep=self._sleep,
        )
        return delivery.round(held.lease, trigger)

    def _sleep(self, seconds: float) -> None:
        """Not for long once the process shall end."""
        self._around.stop.wait(seconds)

    def _landing(self, delivered: Delivered, seconds: float) -> Landing:
        recent = self._around.store.deliveries.recent(self._key, 1)
        return Landing(self.stream, delivered, seconds, recent[0].oldest_prepared_at if recent else None)

    def _note(self, lease: Lease, error: PenstockError) -> None:
        """Operators look into the store, not into this process."""
        deliveries = self._around.store.deliveries
        deliveries.set_state(lease, replace(deliveries.state(self._key), error=str(error)))

    # What it delivers with --------------------------------------------------------------------------

    def _opened_sink(self) -> Sink[Any]:
        if self._sink is None:
            self._sink = build_sink(self.stream.kind, self._settings, self._around.access)
            self._policy = self._sink.options.delivery_policy
        return self._sink

    def _compactor(self, held: HeldLease, sink: Sink[Any], table: Any) -> Compactor | None:
        from .compaction import LocalCompactor, SparkCompactor

        def on_progress(done: int, groups: int) -> None:
            held.check()
            if self._around.stop.is_set():
                raise RetryableError(
                    f"The delivery process was told to end after {done} of {groups} groups of small files of "
                    f"{self._key} were rewritten. The next delivery rewrites them."
                )

        compact_with = sink.options.compact_with
        if compact_with == "none":
            return None
        if compact_with == "spark" and self._around.spark is not None:
            return SparkCompactor(sink, table, self._around.spark)
        return LocalCompactor(sink, table, on_progress=on_progress)

    def last_checkpointed(self) -> int:
        """The newest batch in the commits log of the query's checkpoint.

        Raises:
            CheckpointGoneError: there is no checkpoint any more: its batches wait for an operator.
            RetryableError: it cannot be read now.
        """
        location = self._settings.checkpoint
        filesystem, root = self._opened_sink().open_filesystem(location)
        return Checkpoint(filesystem, root, location).last_commit(self._key.query_id)
