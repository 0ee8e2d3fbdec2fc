"""Commits pending batches, and accepts a table that has changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..committers.contract import ManifestState
from ..committers.errors import ConfigurationError, PenstockError, TableChangedError
from ..committers.protocol.recovery import Recovered, Recovery
from ..committers.store.sql import SqlManifestStore
from ..committers.store.status import StreamStatus
from ..datasource.destinations import open_committer, stored_table
from ..datasource.sink import SupportsTableIdentity, check_same_table
from ..datasource.stored.stored_table import TableNow
from ..datasource.stored.table_access import TableAccess
from ..delivery.stream_settings import StreamSettings


@dataclass(slots=True)
class RecoveredStream:
    """Result of the recovery of one stream. After an error, its remaining batches stay pending."""

    stream: StreamStatus
    batches: list[Recovered] = field(default_factory=list)
    error: PenstockError | None = None

    @property
    def is_pending(self) -> bool:
        return any(batch.state is ManifestState.PREPARED for batch in self.batches)


def is_decoupled(stream: StreamStatus) -> bool:
    return StreamSettings.parse(stream.settings).is_decoupled


def recover_stream(
    store: SqlManifestStore,
    stream: StreamStatus,
    access: TableAccess,
    on_batch: Callable[[int], object] = lambda _: None,
) -> RecoveredStream:
    """Commit the pending batches, as the next start of the query would unless it replays one of them.

    Args:
        on_batch: hears how many batches are done
    """
    recovery = RecoveredStream(stream)
    try:
        table = open_committer(stream, access, store)
        check_same_table(table, stream.key, store.written_table(stream.key))
        for batch in Recovery(store, table).recover_each(stream.key):
            recovery.batches.append(batch)
            on_batch(len(recovery.batches))
    except PenstockError as error:
        recovery.error = error
    return recovery


def changed_table(
    store: SqlManifestStore, stream: StreamStatus, access: TableAccess
) -> tuple[TableNow, str] | None:
    """Return the current table and a description of what has changed; None if nothing has changed.

    Raises:
        ConfigurationError: there is no table to accept.
    """
    written = store.written_table(stream.key)
    now = stored_table(stream, access).now()
    if now is None:
        raise ConfigurationError(
            f"The table {stream.key.table_uri} does not exist. Restore it first, or start the query with a "
            "new checkpoint, which creates it."
        )
    error = recover_stream(store, stream, access).error
    if not isinstance(error, TableChangedError):
        if written is None and not stream.pending:
            raise ConfigurationError(
                f"The stream {stream.key} has not committed anything yet: it accepts any table."
            )
        return None
    wrote = "nothing yet" if written is None else f"table {written.table_id}, version {written.table_version}"
    return now, (
        f"{error}\n\n"
        f"the stream wrote  {wrote}\n"
        f"the table is now  table {now.table_id}, version {now.version}\n"
    )


def accept(store: SqlManifestStore, stream: StreamStatus, now: TableNow, access: TableAccess) -> None:
    """Let the stream continue with the table as it is now, and mark the batches that its token covers."""
    store.accept_table(stream.key, now.table_id, now.version)
    table = open_committer(stream, access, store)
    if isinstance(table, SupportsTableIdentity):
        table.accept(stream.key.query_id)
    Recovery(store, open_committer(stream, access, store)).accept_pending(stream.key)
