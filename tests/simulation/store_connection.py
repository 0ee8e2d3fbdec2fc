"""What stands between a process and a manifest store: a connection that fails."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime, timezone
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, TypeVar

from tests.simulation.manifest_store import SimulatedStore
from tests.simulation.memory_store import Clock
from tests.simulation.scheduler import DiskFullError, Scheduler, UnreachableError

from penstock.committers.contract import Batch, Manifest, ManifestRecord, StreamKey, Token
from penstock.committers.deliveries.contract import Delivery, Lease
from penstock.committers.errors import CommitStateUnknownError, PenstockError, RetryableError
from penstock.committers.progress import BatchInDelivery, Progress
from penstock.committers.store.contract import Prepared, PrepareRequest
from penstock.committers.store.delivery_queries import DeliveryRecord

T = TypeVar("T")

READS = {
    *("settings", "written_table", "other_queries", "streams_of", "record", "manifest", "pending", "history"),
    *(
        "of_table",
        "unfinished",
        "state",
        "backlog",
        "deliverable",
        "manifests_of",
        "with_sources",
        "stream_keys",
        "read",
    ),
    "dead_letters",
    *("settings_of_table", "backlog_of_query"),
}
"""Methods that change nothing."""

ITERATORS = {"manifests", "sources"}
"""Those that read step by step."""


class Connection:
    """One part of a store as one process reaches it: a method is one transaction, and fails as real ones do.

    Args:
        target: the store, its deliveries or its expiries
        suffix: what its methods are about, for the timeline
        is_remote: can a transaction commit after its process has given up on it?
    """

    def __init__(self, target: Any, scheduler: Scheduler, *, suffix: str = "", is_remote: bool) -> None:
        self._target = target
        self._scheduler = scheduler
        self._suffix = suffix
        self._is_remote = is_remote

    def __getattr__(self, name: str) -> Any:
        what = f"store: {name.replace('_', ' ')}{self._suffix}"
        method = getattr(self._target, name)
        kind = self._iterate if name in ITERATORS else self._read if name in READS else self._write
        return partial(self._call, kind, what, method)

    def _call(self, kind: Callable[..., T], what: str, method: Any, *args: Any, **options: Any) -> T:
        return kind(what, partial(method, *args, **options), _Words((*args, *options.values())))

    def _read(self, what: str, act: Callable[[], T], about: object) -> T:
        try:
            return self._scheduler.request(what, act, about=about, writes=False)
        except UnreachableError as error:
            raise RetryableError(str(error)) from error

    def _iterate(self, what: str, act: Callable[[], Iterator[T]], about: object) -> Iterator[T]:
        found = act()
        while (one := self._read(what, lambda: next(found, None), about)) is not None:
            yield one

    def _write(self, what: str, act: Callable[[], T], about: object, late: float = 0.0) -> T:
        """A database driver never sends a COMMIT twice, so a response that got lost stays lost."""
        is_committed = False

        def act_once() -> T:
            nonlocal is_committed
            if is_committed:
                raise UnreachableError(f"{what}: the connection broke after the commit")
            result = act()
            is_committed = True
            return result

        unsent: type[PenstockError] = CommitStateUnknownError if "finish" in what else RetryableError
        try:
            return self._scheduler.request(what, act_once, about=about, remote=self._is_remote, late=late)
        except DiskFullError as error:
            raise unsent(str(error)) from error
        except UnreachableError as error:
            is_sent = "no connection" not in str(error)
            raise (CommitStateUnknownError if is_sent else unsent)(str(error)) from error


class StoreConnection(Connection):
    """A store as one process reaches it.

    Args:
        store: a `MemoryStore`, or the real one
    """

    def __init__(self, store: SimulatedStore, scheduler: Scheduler, *, is_remote: bool) -> None:
        super().__init__(store, scheduler, is_remote=is_remote)
        part = partial(Connection, scheduler=scheduler, is_remote=is_remote)
        self.deliveries: Any = part(store.deliveries, suffix=" delivery")
        self.progress: Any = part(store.progress, suffix=" progress")
        self.expiries: Any = part(store.expiries, suffix=" expiry")
        self.last_prepared: dict[StreamKey, Batch] = {}
        """What the store has answered to the last prepare of a stream: its own batch, or an earlier one."""
        self._abandoned: Batch | None = None

    def prepare_all(self, requests: Sequence[PrepareRequest], run_id: str) -> Sequence[Prepared]:
        act = partial(self._target.prepare_all, requests, run_id)
        about = _Words((*(one.manifest for one in requests), "by", run_id))
        prepared: Sequence[Prepared] = self._write(
            "store: prepare", act, about, late=self._scheduler.hazards.late_prepare
        )
        self.last_prepared |= {one.record.batch.stream: one.record.batch for one in prepared}
        return prepared

    def abort_from(self, expected: ManifestRecord, reason: str) -> bool:
        act = partial(self._target.abort_from, expected, reason)
        is_given_up: bool = self._write("store: give up from", act, _Words((expected, reason)))
        if is_given_up:
            self._abandoned = expected.batch
        return is_given_up

    def abandoned(self) -> Batch | None:
        """The last batch that was given up for its replay, and all behind it."""
        return self._abandoned

    def forget_abandoned(self) -> None:
        self._abandoned = None

    def peek(self, batch: Batch) -> ManifestRecord | None:
        """What is known of the batch, with these offsets; without a step."""
        record = self.peek_at(batch.stream, batch.batch_id)
        return record if record is not None and record.batch == batch else None

    def peek_at_both(self, stream: StreamKey, batch_id: int) -> tuple[ManifestRecord | None, Progress | None]:
        """`peek_at`, and what a service has of the stream, which tells it before the record does."""
        is_known = stream in self._target.stream_keys()
        return self.peek_at(stream, batch_id), self._target.progress.read(stream) if is_known else None

    def peek_at(self, stream: StreamKey, batch_id: int) -> ManifestRecord | None:
        """What is known of any batch with this id; without a step."""
        record: ManifestRecord | None = self._target.record(stream, batch_id)
        return record


class _Words(NamedTuple):
    """The arguments of a call; put into words only if the timeline is kept, or the call fails."""

    arguments: tuple[Any, ...]

    def __str__(self) -> str:
        return " ".join(filter(None, map(_words, self.arguments)))


def _words(value: Any) -> str:
    """An argument, for the timeline."""
    match value:
        case None | StreamKey():
            return ""
        case Batch(batch_id=batch_id):
            return f"batch {batch_id}"
        case ManifestRecord(batch=batch):
            return _words(batch)
        case Manifest(batches=[one]):
            return _words(one)
        case Manifest(batches=[first, *_, last]):
            return f"batches {first.batch_id} to {last.batch_id}"
        case Delivery(delivery_id=number, manifest=manifest):
            return f"{number} of {_words(manifest)}"
        case DeliveryRecord(delivery_id=number):
            return str(number)
        case Lease(holder=holder):
            return f"by {holder}"
        case bool():
            return "compacted" if value else ""
        case Progress(token=token, in_delivery=half):
            return f"after {_words(token)} {_words(half)}"
        case Token(batch_id=batch_id):
            return f"batch {batch_id}"
        case BatchInDelivery(batch_id=batch_id, position=position):
            return f"{position} rows of batch {batch_id}"
        case Enum(value=word) | (str() | int() | float() as word):
            return str(word)
        case Collection():
            return ", ".join(map(_words, value))
        case _:
            return str(value)


def clock_of(scheduler: Scheduler) -> Clock:
    """The time of the simulation, as the store and the clean-up want it."""
    return lambda: datetime.fromtimestamp(scheduler.now, timezone.utc)
