"""Clean-up of the staging folder of a folder of files. Published files are never touched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from ..cleanup import ListedFile
from ..contract import Token
from .committer import FilesCommitter, staging_of


@dataclass(frozen=True, slots=True)
class CleanableFolder:
    """See `CleanableTable`. Each call reads the current state."""

    committer: FilesCommitter

    def id_and_tokens(self, query_ids: Iterable[str]) -> tuple[str | None, Mapping[str, Token]]:
        if not Path(self.committer.folder).is_dir():
            return None, {}
        tokens = {query_id: self.committer.token(query_id) for query_id in query_ids}
        return "", {query_id: token for query_id, token in tokens.items() if token is not None}

    def files(self) -> Iterator[ListedFile]:
        staging = Path(staging_of(self.committer.folder))
        for path in staging.rglob("penstock-*.*"):
            with suppress(FileNotFoundError):
                stat = path.stat()
                modified_at = datetime.fromtimestamp(stat.st_mtime, timezone.utc)
                yield ListedFile(path.relative_to(staging).as_posix(), stat.st_size, modified_at)

    def names(self) -> Iterator[set[str]]:
        yield {path.rpartition("/")[2] for path in self.committer.unpublished()}

    def delete_files(self, paths: Iterable[str]) -> int:
        return self.committer.delete_staged(paths)
