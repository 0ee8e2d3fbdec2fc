"""Request-based destinations for commands and the delivery process, opened by their address in the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from ...committers.errors import ConfigurationError, TableNotSupportedError
from ...committers.requests.committer import RequestCommitter
from ...committers.requests.content import LOGGED, RequestManifests
from ...committers.row_log.names import RowLogName
from ...committers.row_log.sharing import row_log_in
from ..stored.stored_table import TableNow

if TYPE_CHECKING:
    from ...committers.cleaning.cleanup import NameParser
    from ...committers.contract import Manifest, StreamKey, Token
    from ...committers.row_log.cleanup import CleanableRowLogs
    from ...committers.row_log.log import LoggedBatch
    from ...committers.store.sql import SqlManifestStore
    from ..stored.batch_rows import WaitingRows


@dataclass(frozen=True, slots=True)
class StoredRequests:
    """See `StoredTable`. It reads and records the progress, and cleans the row log; it does not send."""

    kind: str
    table_uri: str
    storage: Mapping[str, str] = field(repr=False)
    """Options of the object store with the row log."""
    logged: int = LOGGED
    """See `RequestManifests`."""

    def committer(self) -> RequestCommitter:
        return RequestCommitter(self.kind, self.table_uri)

    def now(self) -> TableNow:
        """Requests cannot be counted, nor can it be seen whether the destination is another one."""
        return TableNow("", 0)

    def batch_rows(self, manifest: Manifest, store: SqlManifestStore) -> Iterator[WaitingRows]:
        """See `HoldsRows`."""
        from ...committers.row_log.log import RowLog
        from ..planning.moved_checkpoint import settings_here
        from ..stored.batch_rows import WaitingRows

        stream = manifest.batch.stream
        location = row_log_in(settings_here(store, stream))
        logged = self.logged_batches(manifest)
        if logged is None:
            raise TableNotSupportedError(
                f"The tasks of batch {manifest.batch.batch_id} of {stream} have sent its rows: they are in "
                "no row log."
            )
        if not location:
            raise ConfigurationError(f"The store does not know the row log of {stream}.")
        log = RowLog(location, dict(self.storage))
        for batch in logged:
            for some in log.read(batch):
                yield WaitingRows(some.partition, some.row, some.rows)

    def logged_batches(self, manifest: Manifest) -> Sequence[LoggedBatch] | None:
        """Return the batches of a manifest in the row log; None if the tasks have sent their rows."""
        return RequestManifests(self.kind, self.logged).batches(manifest)

    def token_of(self, store: SqlManifestStore, stream: StreamKey) -> Token | None:
        """Return the last batch that the destination has."""
        return store.progress.read(stream).token

    def cleanable(self, store: SqlManifestStore) -> CleanableRowLogs:
        from ...committers.row_log.cleanup import CleanableRowLogs
        from ...committers.row_log.log import RowLog

        logs = {
            stream.query_id: RowLog(location, dict(self.storage))
            for stream, settings in store.settings_of_table(self.table_uri)
            if (location := row_log_in(settings))
        }
        return CleanableRowLogs(self.table_uri, logs, store.progress, partial(self.token_of, store))

    def name_parser(self, streams: Sequence[StreamKey]) -> NameParser:
        return RowLogName.parse

    def moves_rows(self) -> bool:
        return True
