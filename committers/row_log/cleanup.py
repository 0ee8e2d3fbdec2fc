"""Clean-up of row logs: the files that failed tasks and killed drivers have left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from ..cleaning.cleanup import ListedFile
from ..contract import StreamKey, Token
from ..progress import ProgressStore
from .log import RowLog
from .names import RowLogName


class CleanableRowLogs:
    """See `CleanableTable`. The row logs of all queries that write to one destination.

    Args:
        table_uri: address of the destination
        logs: by query id
        token_of: returns the last batch that the destination has of a stream; None: the progress says it
    """

    def __init__(
        self,
        table_uri: str,
        logs: Mapping[str, RowLog],
        progress: ProgressStore,
        token_of: Callable[[StreamKey], Token | None] | None = None,
    ) -> None:
        self._table_uri = table_uri
        self._logs = logs
        self._progress = progress
        self._token_of = token_of or (lambda stream: progress.read(stream).token)

    def id_and_tokens(self, query_ids: Iterable[str]) -> tuple[str | None, Mapping[str, Token]]:
        """The last batch of each query that all targets have delivered that read its log."""
        tokens = {query_id: self._token(query_id) for query_id in query_ids}
        return "", {query_id: token for query_id, token in tokens.items() if token is not None}

    def _token(self, query_id: str) -> Token | None:
        stream, log = StreamKey(query_id, self._table_uri), self._logs.get(query_id)
        token = self._token_of(stream)
        settled = None if log is None else self._progress.settled_by_others(stream, log.location)
        if token is None or settled is None or settled >= token.batch_id:
            return token
        return replace(token, batch_id=settled)

    def files(self) -> Iterator[ListedFile]:
        by_location = {log.location: log for log in self._logs.values()}
        for log in by_location.values():
            yield from (ListedFile(*file) for file in log.files.walk())

    def names(self) -> Iterator[set[str]]:
        """None: what is delivered is not needed any more."""
        return iter(())

    def delete_files(self, paths: Iterable[str]) -> int:
        by_query: dict[str, list[str]] = {}
        for path in paths:
            name = RowLogName.parse(path)
            if name is not None:
                by_query.setdefault(name.query_id, []).append(path)
        return sum(
            self._logs[query_id].files.delete(some)
            for query_id, some in by_query.items()
            if query_id in self._logs
        )
