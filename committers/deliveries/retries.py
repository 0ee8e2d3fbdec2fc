"""How a stream goes on after a round: at once, after a wait, batch by batch, or parked."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from ..errors import PenstockError
from .contract import DeliveryState, DeliveryStore, Lease
from .policy import DeliveryPolicy
from .results import Delivered, Failed, RefusedError


class Retries:
    """Records in the state of a stream how a round has ended."""

    def __init__(
        self,
        deliveries: DeliveryStore,
        policy: DeliveryPolicy,
        clock: Callable[[], datetime],
        rng: random.Random,
    ) -> None:
        self._deliveries = deliveries
        self._policy = policy
        self._clock = clock
        self._rng = rng

    def succeeded(self, lease: Lease, state: DeliveryState, delivered: Delivered) -> None:
        is_past = delivered.delivery.manifest.batch.batch_id >= state.isolate_until
        done = replace(
            state, tries=0, retry_at=None, error="", isolate_until=-1 if is_past else state.isolate_until
        )
        if done != state:
            self._deliveries.set_state(lease, done)

    def failed(self, lease: Lease, state: DeliveryState, error: PenstockError) -> Failed:
        """Try again after a wait."""
        tries = state.tries + 1
        retry_at = self._clock() + timedelta(seconds=self._policy.wait_s(tries, self._rng))
        self._deliveries.set_state(lease, replace(state, tries=tries, retry_at=retry_at, error=str(error)))
        return Failed(error, retry_at)

    def refused(self, lease: Lease, state: DeliveryState, refused: RefusedError) -> Failed:
        """Deliver the batches one by one after a failure, so that those before the bad one are committed;
        then park.
        """
        if refused.delivery is not None:
            self._deliveries.abandon(lease, refused.delivery, str(refused.error))
        last = refused.manifest.batch.batch_id
        if len(refused.manifest.batches) > 1 and last > state.isolate_until:
            self._deliveries.set_state(lease, replace(state, isolate_until=last, error=str(refused.error)))
            return Failed(refused.error, self._clock())
        if state.tries + 1 < self._policy.tries_max:
            return self.failed(lease, state, refused.error)
        now = self._clock()
        parked = replace(
            state,
            tries=state.tries + 1,
            retry_at=None,
            error=str(refused.error),
            parked_at=now,
            parked_by="",
            parked_why=f"batch {last} was refused {state.tries + 1} times",
        )
        self._deliveries.set_state(lease, parked)
        return Failed(refused.error, None)
