"""The committer of request-based destinations, whose token is the progress in the manifest store.

A batch that its tasks have sent is only recorded. A batch in the row log is sent first. Neither is atomic
with its
token: a crash in between sends rows again, with the same ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING

from .. import crash_points
from ..contract import AlreadyCommitted, Committed, Conflict, Manifest, Outcome, StreamKey, Token
from ..dead_letters import BadRows, DeadLetterMax
from ..errors import ConfigurationError, FencedError, PenstockError
from ..progress import Progress, ProgressStore
from ..protocol.token_check import other_offsets
from ..row_log.log import LoggedBatch, RowLog
from ..target import CheckToken
from ..texts.safe_text import get_logger
from .content import RequestManifests, RequestPayload
from .contract import Counters, Requests, Sent
from .delivery import ProgressRecorder, deliver

if TYPE_CHECKING:
    from typing_extensions import Self

logger = get_logger(__name__)

PROGRESS_S = 1.0


class RequestCommitter:
    """Delivers manifests to one destination. Runs on the driver and in the delivery process.

    Args:
        kind: of the destination's manifests
        table_uri: address of the destination
        requests: None: it cannot send, only record and read; for commands
        log: None: the location is not known
        progress_s: minimum seconds between two records of the progress
        keys: see `deliver`
        clock: injected for tests
        dead_letter_max: how many rows of a batch the destination may refuse; None: no limit
        on_bad_rows: see `deliver`
        shares_log: other targets of the query may read the same files of the log
    """

    def __init__(
        self,
        kind: str,
        table_uri: str,
        requests: Requests | None = None,
        log: RowLog | None = None,
        progress_s: float = PROGRESS_S,
        keys: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
        dead_letter_max: DeadLetterMax | None = None,
        on_bad_rows: BadRows = BadRows.FAIL,
        *,
        shares_log: bool = True,
    ) -> None:
        self._manifests = RequestManifests(kind)
        self._table_uri = table_uri
        self._requests = requests
        self._log = log
        self._progress_s = progress_s
        self._keys = tuple(keys)
        self._clock = clock
        self._dead_letter_max = dead_letter_max
        self._on_bad_rows = on_bad_rows
        self._shares_log = shares_log
        self._progress: ProgressStore | None = None
        self._watch: Callable[[Counters], None] = lambda counters: None
        self._check: Callable[[], None] = lambda: None

    def with_progress(self, progress: ProgressStore) -> Self:
        """See `StoresProgress`."""
        opened = copy(self)
        opened._progress = progress
        return opened

    def watched(self, watch: Callable[[Counters], None], check: Callable[[], None]) -> Self:
        """See `CountsRequests`."""
        opened = copy(self)
        opened._watch, opened._check = watch, check
        return opened

    @property
    def _store(self) -> ProgressStore:
        if self._progress is None:
            raise PenstockError("The destination was opened without the manifest store, which has its token.")
        return self._progress

    def token(self, query_id: str) -> Token | None:
        """The last batch of the query that is delivered completely."""
        return self._store.read(StreamKey(query_id, self._table_uri)).token

    def missing(self, manifest: Manifest) -> Sequence[str]:
        """Missing files of the row log, with its location. They are deleted after the delivery, so none is
        missing for a batch that is delivered, or of which another process has just delivered a part.
        """
        batches = self._manifests.batches(manifest)
        if not batches or self._log is None:
            return []
        missing = self._log.files.missing([file.path for batch in batches for file in batch.files])
        if not missing:
            return []
        needed = self._undelivered(batches, self._store.read(manifest.batch.stream).token)
        paths = {file.path for batch in needed for file in batch.files}
        return [f"{self._log.location}/{path}" for path in missing if path in paths]

    # Commit ---------------------------------------------------------------------------------------

    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        """Send what is in the row log and not delivered yet, then make the batch the token. Idempotent.

        Raises:
            SchemaMismatchError: the destination has refused a row.
            CheckpointMismatchError: a batch id is delivered with other offsets.
            FencedError: another process delivers the stream.
            RetryableError: the destination, the log or the store does not answer. Some rows may be delivered.
            CommitStateUnknownError: the store may have recorded the progress.
        """
        batches, stream = self._manifests.batches(manifest), manifest.batch.stream
        crash_points.reach("commit.start", manifest.batch.batch_id)
        seen = self._store.read(stream)
        if self._is_delivered(manifest, seen.token):
            self._delete(stream, batches)
            is_last = seen.token is not None and seen.token.batch_id == manifest.batch.batch_id
            dropped = self._manifests.dropped_rows(manifest)
            return AlreadyCommitted(seen.revision if is_last else None, dropped_rows=dropped)
        check_token(seen.token)
        replaced = 0
        if batches is None:
            recorded, dropped = self._record(manifest, seen), self._manifests.dropped_rows(manifest)
            if isinstance(recorded, Conflict):
                return recorded
        else:
            recorded, dropped, replaced = self._deliver(stream, self._undelivered(batches, seen.token), seen)
        crash_points.reach("commit.landed", manifest.batch.batch_id)
        self._delete(stream, batches)
        return Committed(recorded.revision, dropped, replaced)

    def _is_delivered(self, manifest: Manifest, token: Token | None) -> bool:
        """Unlike in a table, some of the merged batches may be delivered and others not."""
        if token is None:
            return False
        for batch in manifest.batches:
            if batch.batch_id == token.batch_id and not token.matches(batch.digest):
                raise other_offsets(batch, f"destination {self._table_uri}")
        return token.batch_id >= manifest.batch.batch_id

    def _undelivered(self, batches: Sequence[LoggedBatch], token: Token | None) -> list[LoggedBatch]:
        last = -1 if token is None else token.batch_id
        return [batch for batch in batches if batch.batch.batch_id > last]

    def _record(self, manifest: Manifest, seen: Progress) -> Progress | Conflict:
        batch = manifest.batch
        try:
            return self._store.write(batch.stream, seen, Token(batch.batch_id, batch.digest))
        except FencedError as error:  # nothing is to be sent, so a concurrent driver does no harm
            return Conflict(str(error))

    def _deliver(
        self, stream: StreamKey, batches: Sequence[LoggedBatch], seen: Progress
    ) -> tuple[Progress, int, int]:
        """Return the new progress, and the numbers of rows that were dropped, and replaced by later ones."""
        log, requests = self._log, self._requests
        if requests is None:
            raise ConfigurationError(
                f"The batches of {stream} wait in its row log. This command does not send them. Run: "
                "penstock deliver --once; or start the query."
            )
        if log is None:
            raise ConfigurationError(
                f"The batches of {stream} wait in its row log, whose location is not known: the checkpoint "
                "is not on a local disk. Give it with the option rowLog."
            )
        recorder = ProgressRecorder(
            self._store, stream, batches, seen, self._progress_s, self._clock, self._dead_letter_max
        )
        sent, replaced = deliver(
            log, requests, recorder, batches, self._keys, self._on_bad_rows, self._watch, self._check
        )
        _tell(stream, batches, sent, replaced)
        return recorder.progress, sent.dropped, replaced

    # Files ----------------------------------------------------------------------------------------

    def discard(self, payloads: Iterable[RequestPayload]) -> int:
        """Delete files that no manifest lists; return their number. What tasks have sent cannot be taken
        back.
        """
        paths = [file.path for payload in payloads if not isinstance(payload, Sent) for file in payload]
        return self._log.files.delete(paths) if self._log is not None and paths else 0

    def _delete(self, stream: StreamKey, batches: Sequence[LoggedBatch] | None) -> None:
        """Delete what is delivered, also by other targets of the query that read the same log.

        If the storage or the store does not answer now, the clean-up does it.
        """
        logged = [batch for batch in batches or () if batch.files]
        if not logged or self._log is None:
            return
        paths = [file.path for batch in logged for file in batch.files]
        try:
            batch_ids = [batch.batch.batch_id for batch in logged]
            needed: set[int] = set()
            if self._shares_log:
                needed = self._store.needed_by_others(stream, self._log.location, batch_ids)
            paths = [file.path for one in logged if one.batch.batch_id not in needed for file in one.files]
            self._log.files.delete(paths)
        except PenstockError as error:
            logger.warning(
                "%s delivered files of %s are left to penstock gc: %s", len(paths), self._log, error
            )


def _tell(stream: StreamKey, batches: Sequence[LoggedBatch], sent: Sent, replaced: int) -> None:
    if sent.dropped:
        logger.warning(
            "%s: the destination refused %s of %s rows of batches %s to %s (see badRows).",
            stream,
            sent.dropped,
            sent.rows,
            batches[0].batch.batch_id,
            batches[-1].batch.batch_id,
        )
    if replaced:
        logger.info(
            "%s: %s of %s rows of batches %s to %s were not sent, as a later row of the same key replaces "
            "them (keys).",
            stream,
            replaced,
            sent.rows,
            batches[0].batch.batch_id,
            batches[-1].batch.batch_id,
        )
