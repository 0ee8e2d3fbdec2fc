"""Chooses the batches of a stream's next delivery."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import chain, islice, takewhile

from ..contract import Batch, Manifest, ManifestRecord, StreamKey
from ..protocol.commit_runner import checked_manifest, stored_manifest
from ..store.contract import ManifestStore
from ..target import Committer
from .contract import BATCHES_READ, DeliveryState, DeliveryStore, Mergeable
from .policy import DeliveryPolicy, due, is_put_off

GROWTH = 8
"""How many times as many batches are read the next time."""


class DueBatches:
    """The batches of one stream that wait for their delivery. One instance per round.

    Args:
        last_checkpointed: returns the newest batch in Spark's commit log; called if the policy needs it
    """

    def __init__(
        self,
        stream: StreamKey,
        store: ManifestStore,
        deliveries: DeliveryStore,
        table: Committer,
        policy: DeliveryPolicy,
        last_checkpointed: Callable[[], int],
        clock: Callable[[], datetime],
    ) -> None:
        self._stream = stream
        self._store = store
        self._deliveries = deliveries
        self._table = table
        self._policy = policy
        self._last_checkpointed = last_checkpointed
        self._clock = clock

    def may_be_due(self, state: DeliveryState, trigger: str | None) -> bool:
        """Return True if a round may have something to do. Called about once per second and before each
        delivery, so it is cheap for a backlog of any length.
        """
        if state.parked_at is not None:
            return False
        if trigger is None and is_put_off(state, self._policy, self._clock()):
            return False
        backlog = self._deliveries.backlog(self._stream, limit=self._policy.after_batches)
        if not backlog.batches:
            return False
        is_begun = trigger is not None or state.tries > 0 or state.isolate_until >= 0
        if is_begun or due(backlog, self._policy, self._clock()):
            return True
        return self._deliveries.unfinished(self._stream) is not None

    def choose(self, state: DeliveryState, trigger: str | None) -> tuple[list[Manifest], str]:
        """Return the batches of the next delivery, oldest first, and its reason; an empty list if none is
        due.
        """
        table = self._table
        last = self._last_checkpointed() if self._policy.after_checkpoint else None
        records = self._deliverable(last)
        first = next(records, None)
        if first is None:
            return [], ""
        if first.batch.batch_id <= state.isolate_until:
            return [stored_manifest(self._store, first.batch)], trigger or "retry"
        why = trigger or self._due(last)
        if why is None:
            return [], ""
        manifests = self._manifests(record.batch for record in chain([first], records))
        return table.mergeable(manifests) if isinstance(table, Mergeable) else [next(manifests)], why

    def _manifests(self, batches: Iterator[Batch]) -> Iterator[Manifest]:
        """Yield the manifests of these batches, read as `prepared` reads their records."""
        limit = 1
        while some := list(islice(batches, limit)):
            while some:
                known = self._deliveries.manifests_of(self._stream, some)
                found: Sequence[Manifest | None] = known or [None]
                for batch, manifest in zip(some, found, strict=False):
                    yield checked_manifest(batch, manifest)
                some = some[len(found) :]
            limit = min(GROWTH * limit, BATCHES_READ)

    def _due(self, last: int | None) -> str | None:
        """Return why a delivery of batches up to `last` is due. Adds up only as many as decide that."""
        before = None if last is None else last + 1
        backlog = self._deliveries.backlog(self._stream, before, self._policy.after_batches)
        return due(backlog, self._policy, self._clock())

    def _deliverable(self, last: int | None) -> Iterator[ManifestRecord]:
        """Yield the batches that may be delivered, oldest first.

        Args:
            last: the newest batch in Spark's commit log; None: any batch may be delivered
        """
        return takewhile(lambda one: last is None or one.batch.batch_id <= last, self.prepared())

    def prepared(self) -> Iterator[ManifestRecord]:
        """Yield the batches that are in no delivery, oldest first. Reads one first, then `GROWTH` times as
        many each time: the cost depends on how many are used, not on how many wait.
        """
        limit, after = 1, None
        while some := self._deliveries.deliverable(self._stream, limit, after):
            yield from some
            if len(some) < limit:
                return
            limit, after = min(GROWTH * limit, BATCHES_READ), some[-1].batch.batch_id
