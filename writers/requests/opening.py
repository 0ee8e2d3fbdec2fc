"""Opens the writer of a task or a delivery, with the options of its query."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TypeVar

from ...committers.dead_letters import BadRows
from ...committers.errors import SchemaMismatchError
from ...committers.requests.contract import RefusedEntry
from ...committers.texts.secrets import Secrets
from .async_sink_writer import AsyncSinkWriter
from .client import Client
from .entry import Entry
from .limits import Limits
from .results import Acknowledged, DeadLetter
from .retry_budget import RetryBudget
from .safe_client import SafeClient
from .sender import RequestSender

PayloadT = TypeVar("PayloadT")


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """Pickled for tasks."""

    limits: Limits = field(default_factory=Limits)
    retries: RetryBudget = field(default_factory=RetryBudget)
    on_bad_rows: BadRows = BadRows.FAIL
    """What happens to entries that the destination refuses for good. FAIL stops the writer."""
    order_by_key: bool = False
    in_order: bool = False
    """See `RequestSender` for both."""
    tasks: int = 1
    """Writers that send at the same time, this one included."""
    rows_s_max: float = math.inf
    """Rows that all of them send a second, each the same part."""
    secrets: Secrets = field(default_factory=Secrets)
    """What no message may show."""


class RowWriter(AsyncSinkWriter[PayloadT]):
    """See `EntryWriter`."""

    def __init__(
        self, sender: RequestSender[PayloadT], refused: list[RefusedEntry], *, in_order: bool = False
    ) -> None:
        super().__init__(sender)
        self._refused = refused
        self._in_order = in_order

    def record_refused_with(self, record: Callable[[], None]) -> None:
        """See `RecordsRefused`."""
        if self._in_order:
            self._sender.after_refusal(record)

    def take_refused(self) -> list[RefusedEntry]:
        taken, self._refused[:] = list(self._refused), []
        return taken


def open_writer(
    client: Client[PayloadT], settings: WriterSettings, on_acknowledged: Callable[[], None] = lambda: None
) -> RowWriter[PayloadT]:
    """Return a new writer. It owns the client.

    Args:
        on_acknowledged: called after some entries were acknowledged, in the writer's event loop
    """

    refused: list[RefusedEntry] = []

    def observe(done: Sequence[tuple[Entry[PayloadT], Acknowledged]]) -> None:
        for entry, result in done:
            if not isinstance(result, DeadLetter):
                continue
            if settings.on_bad_rows is BadRows.FAIL:
                raise SchemaMismatchError(
                    f"The destination refused entry {entry.name} for good: {result.code}. {result.message}\n"
                    "Correct the row in the query, or the destination. Or start the query with "
                    "badRows=deadLetter to keep rows like this one elsewhere, or badRows=drop to drop them; "
                    "if the stream is parked, run penstock retry after that."
                )
            if settings.on_bad_rows is BadRows.DEAD_LETTER:
                now = datetime.now(timezone.utc)
                refused.append(RefusedEntry(entry.position, entry.id, result.code, result.message, now))
        on_acknowledged()

    sender = RequestSender(
        SafeClient(client, settings.secrets),
        settings.limits,
        retries=settings.retries,
        order_by_key=settings.order_by_key,
        in_order=settings.in_order,
        tasks=settings.tasks,
        entries_s_max=settings.rows_s_max / settings.tasks,
        observer=observe,
    )
    return RowWriter(sender, refused, in_order=settings.in_order)
