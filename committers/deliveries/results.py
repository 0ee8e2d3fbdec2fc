"""How a round of deliveries of one stream ends."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from ..contract import AlreadyCommitted, Committed, Manifest
from ..errors import CommitStateUnknownError, PenstockError, RetryableError
from .contract import Delivery

TRANSIENT_ERRORS = (RetryableError, CommitStateUnknownError)
"""Outages and conflicts: retried without limit, and the stream is never parked."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """A committed delivery."""

    delivery: Delivery
    outcome: Committed | AlreadyCommitted
    committed_at: datetime
    source_files: int
    """Number of files of its batches before they were rewritten; 0 if another process had prepared the
    delivery.
    """


@dataclass(frozen=True, slots=True)
class Failed:
    """A failed round. The stream's state in the store has the same error."""

    error: PenstockError
    retry_at: datetime | None
    """None if the stream was parked."""


Round: TypeAlias = Delivered | Failed | None
"""None: there was nothing to do."""


class RefusedError(Exception):
    """Raised within a round: the table does not accept these batches, and a retry would not help."""

    def __init__(self, error: PenstockError, manifest: Manifest, delivery: Delivery | None) -> None:
        super().__init__(str(error))
        self.error = error
        self.manifest = manifest
        self.delivery = delivery
