"""The order of the commits that change rows of a Hudi table: one record for each.

Hudi has no compare-and-set on the state of a table: two commits that rewrite one file group would both be
completed, and the rows of one of them would be lost. So a commit of changes creates the next record, if it is
not there, before it requests its instant. Only one of several commits that are based on the same record can,
and the others look again. A record has all that is needed to complete the instant, so that whoever comes next
completes it if its process has died.

Writers of Hudi know no such records. See `change_commit` for what is checked before an instant is completed.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import TableChangedError
from .names import CHANGES
from .storage import HudiStorage

_NAME = re.compile(r"[0-9]{19}")


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """A commit of changes, as it was decided on."""

    number: int
    query_id: str
    instant: str
    claim: str
    """Path of the claim of its batch."""
    files: tuple[str, ...]
    """Paths of the staged files that the instant adds."""
    written: tuple[str, ...]
    """Those that only this commit needs."""
    based_on: tuple[str, ...]
    """Paths of the slices that it rewrites: the newest ones of their file groups."""
    requested: bytes
    """Content of the requested instant."""
    completed: bytes
    """Content of the completed instant."""
    is_done: bool = False
    """The instant is completed, or will never be."""

    @property
    def path(self) -> str:
        return _path_of(self.number)


class ChangeLog:
    """The records of one table. Only the newest ones are kept."""

    def __init__(self, storage: HudiStorage, table_uri: str) -> None:
        self._storage = storage
        self._uri = table_uri

    def newest(self) -> ChangeRecord | None:
        """
        Raises:
            OSError: it cannot be read.
            TableChangedError: it is damaged.
        """
        for number in reversed(self._numbers()):
            content = self._storage.read(_path_of(number))
            if content is not None:
                return self._decoded(number, content)
        return None

    def add(self, record: ChangeRecord) -> bool:
        """Add a record whose number follows the newest one; return False if another commit was faster."""
        if not self._storage.create(record.path, _encode(record)):
            return self._is(record)  # of this commit if the response was lost
        if self._numbers()[-1] == record.number:
            return True
        self._storage.delete_all([record.path])  # it was there before, and deleted as an old one
        return False

    def is_open(self, record: ChangeRecord) -> bool:
        """Return False if another process has completed the commit, or given it up."""
        newest = self.newest()
        return newest is not None and newest.number == record.number and not newest.is_done

    def mark_done(self, record: ChangeRecord) -> None:
        """Mark it, and delete older ones."""
        self._storage.replace(record.path, _encode(replace(record, is_done=True)))
        older = [number for number in self._numbers() if number < record.number]
        self._storage.delete_all(map(_path_of, older))

    def _is(self, record: ChangeRecord) -> bool:
        return self._storage.read(record.path) == _encode(record)

    def _numbers(self) -> Sequence[int]:
        names = self._storage.names(CHANGES)
        return sorted(int(name) for name in names if _NAME.fullmatch(name))

    def _decoded(self, number: int, content: bytes) -> ChangeRecord:
        try:
            fields = json.loads(content)
            return ChangeRecord(
                number=number,
                query_id=str(fields["query_id"]),
                instant=str(fields["instant"]),
                claim=str(fields["claim"]),
                files=tuple(map(str, fields["files"])),
                written=tuple(map(str, fields["written"])),
                based_on=tuple(map(str, fields["based_on"])),
                requested=b64decode(fields["requested"], validate=True),
                completed=b64decode(fields["completed"], validate=True),
                is_done=bool(fields["is_done"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise TableChangedError(
                f"The file {_path_of(number)} of the Hudi table {self._uri} is not what Penstock has written "
                f"({error!r}). Nothing was committed. Restore it from a backup."
            ) from error


def _path_of(number: int) -> str:
    return f"{CHANGES}/{number:019d}"


def _encode(record: ChangeRecord) -> bytes:
    fields = {
        "query_id": record.query_id,
        "instant": record.instant,
        "claim": record.claim,
        "files": record.files,
        "written": record.written,
        "based_on": record.based_on,
        "requested": b64encode(record.requested).decode(),
        "completed": b64encode(record.completed).decode(),
        "is_done": record.is_done,
    }
    return json.dumps(fields).encode()
