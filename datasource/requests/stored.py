"""Request-based destinations for commands and the delivery process, opened by their address in the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...committers.requests.committer import RequestCommitter
from ...committers.row_log.names import RowLogName
from ...committers.row_log.sharing import row_log_in
from ..destinations import TableNow

if TYPE_CHECKING:
    from ...committers.cleanup import NameParser
    from ...committers.contract import StreamKey
    from ...committers.row_log.cleanup import CleanableRowLogs
    from ...committers.store.sql import SqlManifestStore


@dataclass(frozen=True, slots=True)
class StoredRequests:
    """See `StoredTable`. It reads and records the progress, and cleans the row log; it does not send."""

    kind: str
    table_uri: str
    storage: Mapping[str, str] = field(repr=False)
    """Options of the object store with the row log."""

    def committer(self) -> RequestCommitter:
        return RequestCommitter(self.kind, self.table_uri)

    def now(self) -> TableNow:
        """Requests cannot be counted, nor can it be seen whether the destination is another one."""
        return TableNow("", 0)

    def cleanable(self, store: SqlManifestStore) -> CleanableRowLogs:
        from ...committers.row_log.cleanup import CleanableRowLogs
        from ...committers.row_log.log import RowLog

        logs = {
            stream.key.query_id: RowLog(location, dict(self.storage))
            for stream in store.streams()
            if stream.key.table_uri == self.table_uri and (location := row_log_in(stream.settings))
        }
        return CleanableRowLogs(self.table_uri, logs, store.progress)

    def name_parser(self, streams: Sequence[StreamKey]) -> NameParser:
        return RowLogName.parse

    def moves_rows(self) -> bool:
        return True
