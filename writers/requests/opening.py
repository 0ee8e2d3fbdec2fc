"""Opens the writer of a task or a delivery, with the options of its query."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ...committers.errors import SchemaMismatchError
from .async_sink_writer import AsyncSinkWriter
from .client import Client
from .entry import Entry
from .limits import Limits
from .results import Acknowledged, DeadLetter
from .retry_budget import RetryBudget
from .sender import RequestSender

PayloadT = TypeVar("PayloadT")


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """Pickled for tasks."""

    limits: Limits = field(default_factory=Limits)
    retries: RetryBudget = field(default_factory=RetryBudget)
    drops_bad_rows: bool = False
    """True: entries that the destination refuses for good are dropped and counted. False: they stop the
    writer.
    """
    order_by_key: bool = False
    """See `RequestSender`."""


class RowWriter(AsyncSinkWriter[PayloadT]):
    """See `EntryWriter`."""

    @property
    def dropped(self) -> int:
        return self.counters.dead_letters


def open_writer(
    client: Client[PayloadT], settings: WriterSettings, on_acknowledged: Callable[[], None] = lambda: None
) -> RowWriter[PayloadT]:
    """Return a new writer. It owns the client.

    Args:
        on_acknowledged: called after some entries were acknowledged, in the writer's event loop
    """

    def observe(done: Sequence[tuple[Entry[PayloadT], Acknowledged]]) -> None:
        for entry, result in done:
            if isinstance(result, DeadLetter) and not settings.drops_bad_rows:
                raise SchemaMismatchError(
                    f"The destination refused entry {entry.id} for good: {result.code}. {result.message}\n"
                    "Correct the row in the query, or set badRows=drop to drop rows like this one."
                )
        on_acknowledged()

    sender = RequestSender(
        client,
        settings.limits,
        retries=settings.retries,
        order_by_key=settings.order_by_key,
        observer=observe,
    )
    return RowWriter(sender)
