"""Clean-up of what is staged for a folder of files. Published files are never touched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..cleanup import ListedFile
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
