"""The committer of Kafka topics: one transaction has the rows of a batch, and the marker with its token.

With `parallelTransactions` there are several, each with a part of the rows and a marker, see `parts`. The
rows wait in the row log. A commit takes over the transactional ids of the stream, which ends and fences the
transactions of earlier processes, reads the markers, and sends what they do not have. If the end of a
transaction is unknown, because a response was lost, they are taken over again: then the markers are final.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from .. import crash_points
from ..contract import (
    BATCH_WRITE_PREFIX,
    NO_LETTERS,
    AlreadyCommitted,
    Committed,
    Conflict,
    DataFiles,
    DeadLetters,
    Manifest,
    Outcome,
    Token,
)
from ..dead_letters import BadRows, DeadLetterMax
from ..errors import (
    ConfigurationError,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
    TableChangedError,
)
from ..protocol.decision import is_in_table
from ..protocol.failed_commit import failed_batch
from ..protocol.token_check import is_committed
from ..row_log.log import LoggedBatch, RowLog
from ..target import CheckToken
from ..texts.safe_text import get_logger
from . import content
from .brokers import Topic
from .clients import Kafka, kafka
from .cluster import KafkaAddress, KafkaCluster
from .errors import FENCED, error_of
from .markers import Marker
from .parts import StreamSession, files_of, last_whole, part_key, split_of
from .reading import LoggedRecords, RowRecords
from .records import Chunk
from .split import WHOLE, Split
from .transactions import FencedSessionError, TransactionSettings

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..progress import SharedLogs

logger = get_logger(__name__)

_OF_COMMANDS = TransactionSettings(timeout_s=60.0)
"""They write a marker and no rows."""


@dataclass(frozen=True, slots=True)
class KafkaWriting:
    """What a commit needs besides the manifest. From the options of the query."""

    records: RowRecords
    log: RowLog
    transactions: TransactionSettings
    split: Split = WHOLE
    on_bad_rows: BadRows = BadRows.FAIL
    dead_letter_max: DeadLetterMax | None = None


class KafkaCommitter:
    """Commits manifests to one topic, or to those that rows name. Runs on the driver and in the delivery
    process, one instance per call.

    Args:
        address: of the stream
        writing: None: it reads the token, and writes nothing; for commands
    """

    def __init__(
        self, cluster: KafkaCluster, address: KafkaAddress, writing: KafkaWriting | None = None
    ) -> None:
        self._cluster = cluster
        self._address = address
        self._topic = address.one_topic
        self._writing = writing
        self._logs: SharedLogs | None = None
        self._check: Callable[[], None] = lambda: None

    def with_shared_logs(self, logs: SharedLogs) -> Self:
        """See `ReadsSharedLogs`."""
        opened = copy(self)
        opened._logs = logs
        return opened

    def supervised(self, check: Callable[[], None]) -> Self:
        """See `WritesInCommit`."""
        opened = copy(self)
        opened._check = check
        return opened

    @property
    def _kafka(self) -> Kafka:
        return kafka(self._cluster)

    @property
    def _uri(self) -> str:
        return self._address.uri

    # Current state ----------------------------------------------------------------------------------

    def token(self, query_id: str) -> Token | None:
        """See `Committer`."""
        head = self.marker(query_id)
        others = range(1, split_of(head).parts)
        return last_whole(
            [head, *(self._kafka.markers.read(part_key(self._key(query_id), part)) for part in others)]
        )

    def marker(self, query_id: str) -> Marker | None:
        """Return the marker of the first part."""
        return self._kafka.markers.read(self._key(query_id))

    def target_id(self) -> str | None:
        """The id of the cluster and the topic; None if there is no topic."""
        brokers = self._kafka.brokers
        if self._topic is None:
            return brokers.target_id(None)
        topic = brokers.known([self._topic]).get(self._topic)
        return None if topic is None else brokers.target_id(topic)

    def check_unchanged(self, query_id: str, table_id: str | None, last_version: int | None) -> None:
        """See `SupportsTableIdentity`. Rows that retention has deleted do not matter."""
        marker = self.marker(query_id)
        wrote = {one for one in (table_id, None if marker is None else marker.target) if one}
        if wrote and wrote != {now := self.target_id()}:
            raise self._changed(now)

    def accept(self, query_id: str) -> None:
        """See `SupportsTableIdentity`."""
        now = self.target_id()
        if now is not None:
            with self._marking(query_id) as session:
                head = session.head or self._first_marker(query_id)
                session.parts[0].replace_marker(replace(head, revision=head.revision + 1, target=now))

    @contextmanager
    def _marking(self, query_id: str) -> Iterator[StreamSession]:
        """Open a session to replace markers.

        Raises:
            RetryableError: they are not replaced, or it is not known whether they are.
        """
        try:
            with self._kafka.session(self._address, query_id, _OF_COMMANDS, stays_open=False) as session:
                yield session
        except (FencedSessionError, KafkaException) as error:
            why = self._cluster.secrets.message(str(error))
            raise RetryableError(f"The marker of {self._uri} was not changed: {why}. Try again.") from None

    # What is kept of a query: see `QueryRecords` ------------------------------------------------------

    def found(self, query_id: str) -> Sequence[str]:
        """Return where the marker of the query is; nothing if there is none."""
        if self.marker(query_id) is None:
            return []
        return [f"the record {self._key(query_id)} of the topic {self._cluster.progress_topic}"]

    def remove(self, query_id: str) -> None:
        """Delete the marker of the query, and those of its parts."""
        if self.marker(query_id) is not None:
            with self._marking(query_id) as session:
                session.remove()

    def _first_marker(self, query_id: str) -> Marker:
        return Marker(query_id, self._uri, -1, "", 0, "")

    def _key(self, query_id: str) -> str:
        return self._address.transactional_id(query_id)

    def _session(self, manifest: Manifest, writing: KafkaWriting) -> AbstractContextManager[StreamSession]:
        query_id = manifest.batch.stream.query_id
        return self._kafka.session(
            self._address,
            query_id,
            writing.transactions,
            writing.split,
            next_batch=manifest.batches[0].batch_id,
            stays_open=not query_id.startswith(BATCH_WRITE_PREFIX),
        )

    def _changed(self, now: str | None) -> TableChangedError:
        what = "does not exist any more" if now is None else "was created again, or is one of another cluster"
        return TableChangedError(
            f"The topic of {self._uri} {what}: it does not have the rows that the query has written. Nothing "
            "was committed. Start the query with a new checkpoint to write it from the beginning, or accept "
            "the topic as it is:\n    penstock recover --accept-table"
        )

    # Commit -----------------------------------------------------------------------------------------

    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        """See `Committer`. Sends the rows and the marker in one transaction.

        Raises:
            ConfigurationError: this committer has no options of the query, and Kafka does not have the batch.
            TableChangedError: the topic was dropped or created again; or a file of the log is damaged.
        """
        batches = content.batches_in(manifest)
        crash_points.reach("commit.start", manifest.batch.batch_id)
        try:
            outcome = self._commit(manifest, batches, check_token)
        except FencedSessionError as error:
            return Conflict(f"another process writes the stream, or the transaction took too long: {error}")
        if isinstance(outcome, Committed):
            crash_points.reach("commit.landed", manifest.batch.batch_id)
        if not isinstance(outcome, Conflict):
            self._delete(manifest, batches, outcome.dead_letters)
        return outcome

    def _commit(
        self,
        manifest: Manifest,
        batches: Sequence[LoggedBatch],
        check_token: CheckToken,
        parts_before: int = 0,
    ) -> Outcome:
        """
        Args:
            parts_before: parts that had the batch when their transactions began
        """
        batch, writing = manifest.batch, self._writing
        if writing is None:
            return self._found(manifest)
        revision = 0
        logged = LoggedRecords(writing.records, writing.log, writing.on_bad_rows)
        try:
            with self._session(manifest, writing) as session:
                if (done := self._already_committed(manifest, batches, session)) is not None:
                    letters, dropped = self._refused_in(batches)
                    return replace(done, dead_letters=letters, dropped_rows=dropped)
                check_token(session.token)
                last = session.head or self._first_marker(batch.stream.query_id)
                revision = last.revision + 1
                following = Marker(
                    *(batch.stream.query_id, self._uri, batch.batch_id, batch.digest, revision),
                    target=self._checked_target(manifest),
                    split=session.split.text,
                    files=files_of(batches) if session.split.parts > 1 else {},
                )
                session.send(self._chunks(logged, batches), following, self._check)
        except KafkaException as error:  # of the end of a transaction: the session is closed
            ended = self._outcome_after(error, manifest, batches, writing, parts_before)
            if isinstance(ended, int):  # the response of one part was lost: the others are left
                return self._commit(manifest, batches, check_token, ended)
            if ended is not None:
                return ended
        return Committed(revision, logged.dropped, dead_letters=logged.letters)

    def _found(self, manifest: Manifest) -> AlreadyCommitted:
        batch = manifest.batch
        if is_in_table(self.token(batch.stream.query_id), batch):
            return AlreadyCommitted()
        raise ConfigurationError(
            f"The batches of {batch.stream} wait in its row log. This command does not send them. Run: "
            "penstock deliver --once; or start the query."
        )

    def _already_committed(
        self, manifest: Manifest, batches: Sequence[LoggedBatch], session: StreamSession
    ) -> AlreadyCommitted | None:
        where, token = f"Kafka topic {self._uri}", session.token
        if is_committed(manifest, token, where):
            head = session.head
            is_last = head is not None and head.batch == manifest.batch.batch_id
            return AlreadyCommitted(head.revision if head is not None and is_last else None)
        session.check_divided(batches, where)
        return None

    def _checked_target(self, manifest: Manifest) -> str:
        """Return the id of the topic. Raises `TableChangedError`: the batch was planned for another one."""
        planned, now = content.decode(manifest).target_id, self.target_id()
        if now is None or planned not in ("", now):
            raise self._changed(now)
        return now

    def _chunks(self, logged: LoggedRecords, batches: Sequence[LoggedBatch]) -> Iterator[Chunk]:
        """Yield the records. Raises an error before those of a topic that does not exist: the broker could
        create it.
        """
        known: dict[str, Topic] = {}
        for chunk in logged.records(batches):
            records = chunk.convertible
            if new := {record[0] for record in records} - known.keys():
                known |= self._kafka.brokers.existing(new)
            for record in records:
                if record[3] >= known[record[0]].partitions:
                    raise SchemaMismatchError(
                        f"A row names partition {record[3]} of the topic {record[0]}, which has "
                        f"{known[record[0]].partitions}. Nothing was committed. Add partitions to the topic, "
                        "or give the batch up with `penstock skip`."
                    )
            yield chunk
        if self._writing is not None:
            logged.check_letters(batches, self._writing.dead_letter_max)

    def _outcome_after(
        self,
        error: KafkaException,
        manifest: Manifest,
        batches: Sequence[LoggedBatch],
        writing: KafkaWriting,
        parts_before: int,
    ) -> Outcome | int | None:
        """Interpret an error at the end of a transaction. None: the batch is committed. A number: so many
        parts have it, more than before.
        """
        why = self._cluster.secrets.message(error_of(error).str())
        failed = failed_batch(manifest.batch, f"the Kafka topic {self._uri}", why, can_commit_later=False)
        with failed.reading_table(), self._session(manifest, writing) as session:
            if self._already_committed(manifest, batches, session) is not None:
                return None
            parts = sum(part.last_batch >= manifest.batch.batch_id for part in session.parts)
        if parts > parts_before:
            return parts
        if error_of(error).code() in FENCED:
            return Conflict(f"another process writes the stream, or the transaction took too long: {why}")
        raise failed.not_found()

    # Refused rows: see `HoldsRefusedRows` -----------------------------------------------------------

    def refused_rows(self, manifest: Manifest) -> DeadLetters:
        return self._refused_in(content.batches_in(manifest))[0]

    def delete_refused_rows(self, manifest: Manifest) -> None:
        self._delete(manifest, content.batches_in(manifest), NO_LETTERS)

    def _refused_in(self, batches: Sequence[LoggedBatch]) -> tuple[DeadLetters, int]:
        """Find the rows that were refused when the batches were committed, by a process that was killed
        before it could store them. The files of a batch with such rows are still there.
        """
        writing = self._writing
        if writing is None or writing.on_bad_rows is not BadRows.DEAD_LETTER:
            return NO_LETTERS, 0
        logged = LoggedRecords(writing.records, writing.log, writing.on_bad_rows)
        for one in batches:
            if not writing.log.files.missing([file.path for file in one.files]):
                for _ in logged.records([one]):
                    pass
        return logged.letters, logged.dropped

    # Files of the row log ---------------------------------------------------------------------------

    def missing(self, manifest: Manifest) -> Sequence[str]:
        """Missing files of the row log, with its location. They are deleted after the commit, so none is
        missing for a batch that Kafka has.
        """
        paths = [file.path for file in content.decode(manifest).files]
        if self._writing is None or not paths:
            return []
        log = self._writing.log
        missing = log.files.missing(paths)
        if not missing or is_in_table(self.token(manifest.batch.stream.query_id), manifest.batch):
            return []
        return [f"{log.location}/{path}" for path in missing]

    def discard(self, payloads: Iterable[DataFiles]) -> int:
        paths = [file.path for payload in payloads for file in payload]
        return self._writing.log.files.delete(paths) if self._writing is not None and paths else 0

    def _delete(self, manifest: Manifest, batches: Sequence[LoggedBatch], letters: DeadLetters) -> None:
        """Delete files that no target of the query needs any more. Those of a batch with dead letters stay
        until these are stored. If the storage or the store does not answer now, the clean-up does it.
        """
        left = [one for one in batches if one.files and not letters.get(one.batch.batch_id)]
        if not left or self._writing is None or self._logs is None:
            return
        log = self._writing.log
        try:
            needed = self._logs.needed_by_others(
                manifest.batch.stream, log.location, [one.batch.batch_id for one in left]
            )
            log.files.delete(
                [file.path for one in left if one.batch.batch_id not in needed for file in one.files]
            )
        except PenstockError as error:
            logger.warning("Delivered files of %s are left to penstock gc: %s", log, error)
