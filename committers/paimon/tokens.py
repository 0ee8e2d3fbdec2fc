"""The last batch of a query in a Paimon table: its token.

The snapshot of a batch has the query as its commit user, the batch id as its commit identifier, and the
digest in its properties. So rows and token are in the same file. Paimon's own writers also look for their
user's newest snapshot to find out what they have committed.

But snapshots expire. So each query also has a note in the table's folder, `penstock/<query>.json`, which no
writer of Paimon deletes. Before a commit, the note says which batch will be committed, and after which
snapshot; after it, which batch was committed, in which snapshot. What the note says was committed remains
known. What it says will be committed is searched in the snapshots after the one that it names; if one of them
has expired, it cannot be known, and nothing is committed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ..contract import BATCH_WRITE_PREFIX, Batch, Token
from ..errors import TableChangedError
from .table import PaimonTable, Snapshot

NOTES = "penstock"
"""The folder of the notes in a table."""
USER_PREFIX = "penstock-"
DIGEST = "penstock.digest"

_BATCH_WRITE_NOTE_KEPT_MS = 7 * 24 * 3600 * 1000
"""Longer than a batch write may take to commit: only its own commit reads its note."""


@dataclass(frozen=True, slots=True)
class Note:
    """What a query has noted about its commits."""

    batch_id: int | None = None
    """The last batch that is known to be committed."""
    digest: str = ""
    snapshot_id: int = 0
    """The snapshot of that batch."""
    searched_from: int | None = None
    """A later batch may be in a snapshot after this one; None: there is no later batch."""
    timestamp_ms: int = 0
    origins: tuple[str, ...] = ()

    @classmethod
    def parse(cls, content: bytes) -> Note:
        """Raises ValueError, KeyError or TypeError for other content."""
        fields = json.loads(content)
        batch_id, searched_from = fields["batch_id"], fields["searched_from"]
        return cls(
            None if batch_id is None else int(batch_id),
            str(fields["digest"]),
            int(fields["snapshot_id"]),
            None if searched_from is None else int(searched_from),
            int(fields["timestamp_ms"]),
            tuple(map(str, fields["origins"])),
        )

    def encode(self) -> bytes:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return json.dumps(fields).encode()

    @property
    def token(self) -> Token | None:
        return None if self.batch_id is None else Token(self.batch_id, self.digest)


class Tokens:
    """The tokens of one table. Each call reads the current state."""

    def __init__(self, table: PaimonTable) -> None:
        self._table = table

    def note(self, query_id: str, *, planned_at: int | None = None) -> Note:
        """Return what is known about the query's last batch.

        Args:
            planned_at: the newest snapshot when a batch was planned, for a table without a note

        Raises:
            TableChangedError: the table has lost a batch that was committed, or it cannot be known whether
                one was committed.
        """
        noted = self._read(query_id)
        ids = self._table.snapshot_ids()
        if noted is not None:
            self._check_there(query_id, noted, ids)
        after = 0 if noted is None else noted.snapshot_id
        found = self._newest_of(query_id, [one for one in ids if one > after])
        if found is not None:
            origins = () if noted is None else noted.origins
            return Note(
                found.commit_identifier, found.properties.get(DIGEST, ""), found.snapshot_id, origins=origins
            )
        unsure_from = planned_at if noted is None else noted.searched_from
        if unsure_from is not None:
            self._check_complete(query_id, unsure_from, ids)
        return noted or Note()

    def begin(self, query_id: str, known: Note, after: int, now_ms: int) -> None:
        """Note that a batch will be committed after this snapshot. Raises OSError."""
        self._write(query_id, replace(known, searched_from=after, timestamp_ms=now_ms))

    def end(self, batch: Batch, snapshot_id: int, origins: Sequence[str], now_ms: int) -> None:
        """Note that a batch is committed. Raises OSError."""
        note = Note(batch.batch_id, batch.digest, snapshot_id, None, now_ms, tuple(origins))
        self._write(batch.stream.query_id, note)

    def settle(self, query_id: str, known: Note, now_ms: int) -> None:
        """Note what was found in the snapshots, if the note does not say so yet. Raises OSError."""
        if known.batch_id is not None and self._read(query_id) != known:
            self._write(query_id, replace(known, searched_from=None, timestamp_ms=now_ms))

    def forget(self, query_id: str) -> None:
        """Forget a batch that the table has lost. Raises OSError."""
        ids = self._table.snapshot_ids()
        found = self._newest_of(query_id, ids)
        note = (
            Note()
            if found is None
            else Note(found.commit_identifier, found.properties.get(DIGEST, ""), found.snapshot_id)
        )
        self._write(query_id, note)

    def noted(self, query_id: str) -> str | None:
        """Return the name of the query's note, as a file in the table; None if there is none."""
        name = _name(query_id)
        return None if self._table.read(name) is None else name

    def recorded_origin(self, query_id: str, origins: Sequence[str]) -> str | None:
        """Return the first of the origins from which another query has committed."""
        others = {
            origin
            for other, note in self._all()
            if other != query_id and note.batch_id is not None
            for origin in note.origins
        }
        return next((origin for origin in origins if origin in others), None)

    def old_batch_writes(self, now_ms: int) -> list[str]:
        """Return the notes of batch writes that no longer need them, as names of files in the table."""
        return [
            _name(query_id)
            for query_id, note in self._all()
            if query_id.startswith(BATCH_WRITE_PREFIX)
            and note.timestamp_ms < now_ms - _BATCH_WRITE_NOTE_KEPT_MS
        ]

    def _read(self, query_id: str) -> Note | None:
        content = self._table.read(_name(query_id))
        if content is None:
            return None
        try:
            return Note.parse(content)
        except (ValueError, KeyError, TypeError) as error:
            raise TableChangedError(
                f"The file {_name(query_id)} of the Paimon table {self._table.place} is not what Penstock "
                f"has written ({error!r}). Nothing was committed. Restore it from a backup."
            ) from error

    def _write(self, query_id: str, note: Note) -> None:
        self._table.replace(_name(query_id), note.encode())

    def _all(self) -> Iterator[tuple[str, Note]]:
        for name in self._table.names(NOTES):
            query_id, dot, ending = name.rpartition(".")
            content = self._table.read(f"{NOTES}/{name}") if (dot, ending) == (".", "json") else None
            if content is not None:
                with suppress(ValueError, KeyError, TypeError):  # of others
                    yield query_id, Note.parse(content)

    def _newest_of(self, query_id: str, ids: Sequence[int]) -> Snapshot | None:
        for snapshot_id in reversed(ids):
            snapshot = self._table.snapshot(snapshot_id)
            if snapshot is not None and snapshot.commit_user == USER_PREFIX + query_id:
                return snapshot
        return None

    def _check_there(self, query_id: str, noted: Note, ids: Sequence[int]) -> None:
        if noted.batch_id is None:
            return
        if noted.snapshot_id > max(ids, default=0):
            raise self._lost(query_id, noted, "it was rolled back or restored from a backup")
        snapshot = self._table.snapshot(noted.snapshot_id)
        if snapshot is None:  # expired
            return
        if (snapshot.commit_user, snapshot.commit_identifier) != (USER_PREFIX + query_id, noted.batch_id):
            raise self._lost(
                query_id, noted, "another writer has replaced the snapshot, or the table was rolled back"
            )

    def _lost(self, query_id: str, noted: Note, why: str) -> TableChangedError:
        return TableChangedError(
            f"The Paimon table {self._table.place} has lost batch {noted.batch_id} of query {query_id}, "
            f"which was committed as snapshot {noted.snapshot_id}: {why}. Nothing was committed. Restore the "
            "table, or start the query with a new checkpoint to write it from the beginning. If the table is "
            f"right as it is: penstock recover {query_id} --accept-table"
        )

    def _check_complete(self, query_id: str, after: int, ids: Sequence[int]) -> None:
        """
        Raises:
            TableChangedError: a snapshot after this one has expired.
        """
        latest = max(ids, default=0)
        if latest - after > sum(one > after for one in ids):
            raise TableChangedError(
                f"A commit of query {query_id} to the Paimon table {self._table.place} was interrupted after "
                f"snapshot {after}, and snapshots after that have expired since. So it is unknown whether "
                "the batch is in the table. Nothing was committed. Look for its rows with Paimon. "
                f"If they are there: penstock skip. If not: penstock recover {query_id} --accept-table"
            )


def _name(query_id: str) -> str:
    return f"{NOTES}/{query_id}.json"
