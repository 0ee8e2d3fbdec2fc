"""Waits until the store's database answers again, so that a restart of it does not end a query. Driver only.

Only whole calls of the store are repeated: each is one transaction, and the ones that write are idempotent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

from ..errors import CommitStateUnknownError, PenstockError, StoreFailedError, StoreUnreachableError
from ..texts.safe_text import get_logger

logger = get_logger(__name__)

T = TypeVar("T")

PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a call waits for the database.

    Args:
        wait_s: maximum time from the first failure of a call on; 0 never waits
        clock, sleep: injected for tests
    """

    wait_s: float = 0.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def call(self, call: Callable[[], T]) -> T:
        """Call until the database answers.

        Raises:
            StoreFailedError, StoreUnreachableError: it does not answer in time; the call changed nothing.
            CommitStateUnknownError: a COMMIT was not answered, and no later attempt has cleared that up.
        """
        began: float | None = None
        unknown: CommitStateUnknownError | None = None
        while True:
            try:
                return call()
            except (StoreFailedError, StoreUnreachableError, CommitStateUnknownError) as error:
                now = self.clock()
                if isinstance(error, CommitStateUnknownError):
                    unknown = error
                if began is None:
                    began = now
                    if self.wait_s:
                        logger.warning(
                            "The query waits up to %.0f s (storeWaitSeconds) for the store, and ends if it "
                            "does not answer by then. The first error: %s",
                            self.wait_s,
                            error,
                        )
                if now - began >= self.wait_s:
                    raise unknown or error from None
            except PenstockError as error:
                # What this attempt says is true only if the one before it was not executed.
                if unknown is not None:
                    raise unknown from error
                raise
            self.sleep(PAUSE_S)


def waits(*methods: str) -> Callable[[type[T]], type[T]]:
    """Let these methods of a part of the store wait, as the `Patience` of its `_database` says."""

    def decorated(part: type[T]) -> type[T]:
        for name in methods:
            setattr(part, name, _waiting(getattr(part, name)))
        return part

    return decorated


def _waiting(method: Callable[..., T]) -> Callable[..., T]:
    @wraps(method)
    def waiting(self: Any, *args: Any, **kwargs: Any) -> T:
        patience: Patience = self._database.patience
        if not patience.wait_s:
            return method(self, *args, **kwargs)
        return patience.call(lambda: method(self, *args, **kwargs))

    return waiting
