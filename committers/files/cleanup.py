"""Clean-up of what is staged for a folder of files. Published files are never touched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..cleaning.cleanup import ListedFile
from ..contract import Token
from .committer import FilesCommitter


@dataclass(frozen=True, slots=True)
class CleanableFolder:
    """See `CleanableTable`. Each call reads the current state."""

    committer: FilesCommitter

    def id_and_tokens(self, query_ids: Iterable[str]) -> tuple[str | None, Mapping[str, Token]]:
        if not self.committer.place.exists():
            return None, {}
        tokens = {query_id: self.committer.token(query_id) for query_id in query_ids}
        return "", {query_id: token for query_id, token in tokens.items() if token is not None}

    def files(self) -> Iterator[ListedFile]:
        return self.committer.place.staged()

    def names(self) -> Iterator[set[str]]:
        yield {path.rpartition("/")[2] for path in self.committer.unpublished()}

    def delete_files(self, paths: Iterable[str]) -> int:
        return self.committer.place.delete_staged(paths)


@dataclass(frozen=True, slots=True)
class FilesRecords:
    """See `QueryRecords`: the query's journal."""

    committer: FilesCommitter
    query_id: str

    def found(self) -> Sequence[str]:
        place = self.committer.place
        return [place.journal_address(self.query_id)] if self.query_id in place.journals() else []

    def remove(self) -> None:
        if self.committer.place.exists():
            self.committer.token(self.query_id)  # publishes what is committed
        self.committer.place.remove_journal(self.query_id)
