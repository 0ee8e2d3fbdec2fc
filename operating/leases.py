"""The lease of a stream, while a command changes what deliveries would change."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..committers.contract import StreamKey
from ..committers.errors import RetryableError
from ..committers.store.sql import SqlManifestStore
from ..delivery.context import new_holder
from ..delivery.lease import HeldLease

LEASE_S = 10.0
"""Renewed meanwhile. Shorter than the wait: a command that was killed can be repeated at once."""
LEASE_WAIT_S = 15.0
"""How long to wait for the lease: a delivery process holds it only while it delivers."""


@contextmanager
def held_lease(store: SqlManifestStore, stream: StreamKey) -> Iterator[str]:
    """Hold the lease for the block; yield the name of its holder.

    Raises:
        RetryableError: another process has held the lease for `LEASE_WAIT_S`.
    """
    holder, ends_at = new_holder(), time.monotonic() + LEASE_WAIT_S
    while (lease := store.deliveries.acquire(stream, holder, LEASE_S)) is None:
        if time.monotonic() > ends_at:
            raise RetryableError(
                f"Another process has held the lease of {stream} for {LEASE_WAIT_S:.0f} seconds. Nothing was "
                "changed. If it is a delivery process, stop its deliveries with penstock park. Then try "
                "again."
            )
        time.sleep(0.5)
    with HeldLease(store.deliveries, lease, LEASE_S):
        yield holder
