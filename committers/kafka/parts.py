"""The transactions of one stream: one, or with `parallelTransactions` several, each with a part of the rows.

The marker of the first part is that of the stream, its *head*. It names the split: the number of parts, and
what the part of a row depends on. The other parts have markers of their own, with the same split. A batch is
in Kafka when all parts have it; if only some have it, the split stays until the others have it, too.

A process takes over all transactional ids, reads the markers, and then commits the head again. That fails if
another process has begun to take the stream over since. So no process sends rows with a part of a split that
another one has replaced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from ..errors import ConfigurationError, TableChangedError
from ..protocol.token_check import has_batch
from .markers import Marker
from .split import PARALLEL_MAX, WHOLE, Split

if TYPE_CHECKING:
    from ..contract import Token
    from ..row_log.log import LoggedBatch
    from .records import Chunk
    from .transactions import Session


def part_key(key: str, part: int) -> str:
    """Return the transactional id of a part, which is also the key of its marker.

    Args:
        key: that of the stream
    """
    return key if part == 0 else f"{key}-{part}"


def split_of(head: Marker | None) -> Split:
    return WHOLE if head is None else Split.parse(head.split)


def last_whole(markers: Sequence[Marker | None]) -> Token | None:
    """Return the token of the last batch that all parts have."""
    if any(marker is None for marker in markers):
        return None
    return min((marker for marker in markers if marker is not None), key=lambda one: one.batch).token


def files_of(batches: Iterable[LoggedBatch]) -> dict[str, str]:
    """Return a short digest of the files of each batch, by batch id."""
    return {
        str(one.batch.batch_id): hashlib.sha256(
            "\n".join(file.path for file in one.files).encode()
        ).hexdigest()[:16]
        for one in batches
    }


class StreamSession:
    """The sessions of a stream. Use it in `Kafka.session` only.

    Args:
        split: of the rows; None: as in the markers
        first: the head of a stream that has none
        open_part: returns a session with this key, which has not begun
        read: returns the marker of a key
    """

    def __init__(
        self,
        key: str,
        split: Split | None,
        first: Marker,
        open_part: Callable[[str], Session],
        read: Callable[[str], Marker | None],
    ) -> None:
        self._key = key
        self._wanted = split
        self._first = first
        self._open_part = open_part
        self._read = read
        self.split = WHOLE
        self.parts: list[Session] = []

    def begin(self, next_batch: int | None = None) -> None:
        """Take over the stream, then read its markers. The split is that of the markers while some parts have
        a batch that others do not have.

        Args:
            next_batch: id of the batch that is to be sent; None: a command has to do with markers only

        Raises:
            FencedSessionError: another process takes the stream over.
            ConfigurationError: a batch is in Kafka in part, and the rows would be divided by another key.
            TableChangedError: the marker of a part is missing.
            RetryableError: the brokers do not answer, or deny access.
        """
        head = self._begun(0)
        stored = split_of(head.marker)
        wanted = self._wanted or stored
        sessions = [head, *(self._begun(part) for part in range(1, max(stored.parts, wanted.parts)))]
        of_stored = sessions[: stored.parts]
        if next_batch is not None:
            self._check_markers(stored, of_stored)
        last = max(of_stored, key=lambda one: one.last_batch)
        is_level = len({one.last_batch for one in of_stored}) == 1
        is_level = is_level or (next_batch is not None and next_batch > last.last_batch)
        if not is_level and wanted.key not in ("", stored.key):
            head.replace_marker(head.marker)  # fails if the markers are uneven as another process goes on
            raise ConfigurationError(
                f"Some parts of batch {last.last_batch} of {self._key} are in Kafka, and others are not. Its "
                f"rows were divided by {stored.key}, and the options of the query now say {wanted.key}. "
                "Nothing was committed. Start the query with the earlier valueFormat and keyColumns until "
                "the batch is committed, or give the rest of it up with `penstock skip`."
            )
        self.split = wanted if is_level else stored
        self.parts = sessions[: self.split.parts]
        if self.split != stored:
            self._divide(last.marker)
        elif stored.parts > 1:
            head.replace_marker(head.marker)

    def _check_markers(self, stored: Split, sessions: Sequence[Session]) -> None:
        for part, session in enumerate(sessions):
            if part and (session.marker is None or session.marker.split != stored.text):
                sessions[0].replace_marker(sessions[0].marker)  # likewise
                raise TableChangedError(
                    f"The marker {part_key(self._key, part)} of the progress topic is missing: it says which "
                    "batches a part of parallelTransactions has. Nothing was committed. Restore the record, "
                    "or start the query with a new checkpoint."
                )

    def _begun(self, part: int) -> Session:
        key = part_key(self._key, part)
        session = self._open_part(key)
        session.begin(lambda: self._read(key))
        return session

    def _divide(self, last: Marker | None) -> None:
        """Store another split. The markers of its parts come before the head, which makes them valid."""
        whole = self._first if last is None else last
        following = replace(whole, split=self.split.text, files={}, revision=whole.revision + 1)
        for session in reversed(self.parts):
            session.replace_marker(following)

    def remove(self) -> None:
        """Delete the markers, also those of parts of earlier splits, and the head last."""
        for part in reversed(range(PARALLEL_MAX)):
            if self._read(part_key(self._key, part)) is not None:
                session = self.parts[part] if part < len(self.parts) else self._begun(part)
                session.replace_marker(None)

    def check_divided(self, batches: Sequence[LoggedBatch], where: str) -> None:
        """Check that batches which only some parts have are still divided in the same way.

        Args:
            where: the topic, for messages

        Raises:
            CheckpointMismatchError: they have other offsets.
            TableChangedError: they were written again.
        """
        whole = -1 if (token := self.token) is None else token.batch_id
        files = files_of(batches) if len(self.parts) > 1 else {}
        for marker in [part.marker for part in self.parts]:
            if marker is None or marker.token is None:
                continue
            for one in batches:
                if not whole < one.batch.batch_id <= marker.batch:
                    continue
                number = str(one.batch.batch_id)
                has_batch(one.batch, marker.token, where, lambda: None)
                if marker.files.get(number) != files.get(number):
                    raise TableChangedError(
                        f"The {where} has some parts of batch {number} of {one.batch.stream}, and its rows "
                        "were written again since: they may be divided into parts in another way. Nothing "
                        "more was committed. Give the rest of the batch up with `penstock skip`."
                    )

    def send(self, chunks: Iterable[Chunk], following: Marker, check: Callable[[], None]) -> None:
        """Send the rows to the parts that do not have them, then commit part by part.

        Args:
            following: the marker of each of these parts
            check: called now and then; its error ends the transactions

        Raises:
            KafkaException: of the end of a transaction, which may be committed or not.
            FencedSessionError, PenstockError: parts that are not committed are ended.
        """
        open_parts = [part for part in self.parts if part.last_batch < following.batch]
        try:
            for part in open_parts:
                part.start()
            for chunk in chunks:
                check()
                for part, records in zip(self.parts, self.split.divide(chunk), strict=True):
                    if part.last_batch < chunk.batch_id:
                        part.send(records)
            for part in open_parts:
                part.flush(check)
            while open_parts:
                open_parts[0].mark(following)
                check()
                ending = open_parts.pop(0)
                ending.commit()
                ending.marker = following
        except KafkaException:
            raise
        except Exception:
            for part in open_parts:
                part.abort()
            raise

    @property
    def head(self) -> Marker | None:
        return self.parts[0].marker

    @property
    def token(self) -> Token | None:
        return last_whole([session.marker for session in self.parts])
