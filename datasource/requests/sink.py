"""The sink and the target of request-based destinations."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, cast

import pyarrow as pa

from ...committers.contract import Batch, DataFiles, Manifest, Mode, PlannedBatch, TaskWriterFactory
from ...committers.delta.probing import storage_probe
from ...committers.dry_runs import NotCreatedError, dry_run, in_dry_run
from ...committers.errors import ConfigurationError, PenstockError, RetryableError
from ...committers.probing import Probe
from ...committers.requests.changed_rows import check_one_row_of_each_key
from ...committers.requests.committer import RequestCommitter
from ...committers.requests.content import RequestPayload
from ...committers.requests.contract import ChangesRows, ChecksDestination, Requests, Sent
from ...committers.row_log.log import RowLog
from ...committers.target import ChecksConnection
from ...committers.texts.safe_text import get_logger
from ...writers.requests.direct import DirectWriters
from ...writers.row_log.writer import RowLogWriters
from ..checked import ChecksByDryRun
from ..options.row_log import create_row_log, missing_row_log
from ..plain_sink import StorageSink
from .changing import ChangingRequests
from .options import RequestOptions

logger = get_logger(__name__)

Route = Literal["direct", "log"]
"""How the rows of a batch reach the destination: sent by the tasks, or through the row log."""


@dataclass(frozen=True, slots=True)
class RequestSink(StorageSink):
    """See `Sink`."""

    kind: str
    table_uri: str
    options: RequestOptions
    requests: Requests = field(repr=False)

    def open_table(self) -> RequestTarget:
        return RequestTarget(self)

    def probes(self) -> Sequence[Probe]:
        """See `ProbesStorage`."""
        location = self.options.row_log_location
        if location is None or (self.options.sends_from_tasks and not self.options.route_by):
            return ()
        return (storage_probe(location, self.options.storage_options),)


class RequestTarget(ChecksByDryRun, RequestCommitter):
    """The target of a stream, with the options of its query. See `Target` and `Mergeable`.

    A coupled query sends the rows of a batch from its tasks. A decoupled one writes them to the row log, and
    so does one whose rows are changes: the last row of a key is known when all tasks have ended.
    """

    def __init__(self, sink: RequestSink) -> None:
        options = sink.options
        self._options, self._name = options, sink.kind
        self._location = options.row_log_location
        log = None if self._location is None else RowLog(self._location, dict(options.storage_options))
        self._destination = sink.requests
        self._rows_to_requests = options.with_keys(sink.requests)
        super().__init__(
            sink.kind,
            sink.table_uri,
            self._rows_to_requests,
            log,
            options.progress_s,
            options.keys,
            dead_letter_max=options.dead_letter_max,
            on_bad_rows=options.bad_rows,
            shares_log=not options.route_by,
        )

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedBatch[RequestPayload, Route]:
        if mode == "overwrite":
            raise ConfigurationError(
                f"penstock.{self._name} cannot overwrite: what was sent cannot be taken back. Write in the "
                "output mode append."
            )
        self._rows_to_requests.check_schema(rows)
        requests = self._rows_to_requests
        if isinstance(self._destination, ChecksDestination):
            sent = requests.sent_rows(rows) if isinstance(requests, ChangingRequests) else rows
            self._check_destination(self._destination, sent)
        writers: TaskWriterFactory[RequestPayload]
        if self._options.sends_from_tasks:
            writers = cast("TaskWriterFactory[RequestPayload]", DirectWriters(self._rows_to_requests))
            return PlannedBatch(writers, "direct", "", is_lasting=False)
        if self._location is None:
            raise missing_row_log("delivery=decoupled" if self._options.is_decoupled else "writeMode=upsert")
        create_row_log(self._location)
        open_log = partial(RowLogWriters, self._location, self._options.storage_options)
        log: TaskWriterFactory[DataFiles] = (
            requests.writers(rows, open_log)
            if isinstance(requests, ChangingRequests)
            else open_log(requests.checker())
        )
        return PlannedBatch(cast("TaskWriterFactory[RequestPayload]", log), "log", "", is_lasting=False)

    def check_batch(self, rows: pa.Schema, mode: Mode) -> bool:
        """See `ChecksBatches`."""
        is_there = super().check_batch(rows, mode)
        if not isinstance(self._destination, ChecksDestination):
            self.check_connection()
        return is_there

    def check_connection(self) -> bool:
        """See `ChecksConnection`."""
        if isinstance(self._destination, ChecksDestination):
            with dry_run(), suppress(NotCreatedError):  # it has answered that it does not exist
                self._ask(self._destination, pa.schema([]))
            return True
        return isinstance(self._destination, ChecksConnection) and self._destination.check_connection()

    def _check_destination(self, requests: ChecksDestination, rows: pa.Schema) -> None:
        """Check the destination for each batch that tasks send. Otherwise once in a process: the destination
        may be down, and is not needed before the delivery.
        """
        if not self._options.is_decoupled or in_dry_run():
            self._ask(requests, rows)
            return
        checked = (requests, rows)
        if checked in _CHECKED:
            return
        try:
            self._ask(requests, rows)
        except RetryableError as error:
            logger.warning("Batches are written to the row log, but %s", error)
        _CHECKED.append(checked)

    def _ask(self, requests: ChecksDestination, rows: pa.Schema) -> None:
        """Make the check. Its error has no cause: that would show what the service said as it is."""
        try:
            requests.check_destination(rows)
        except Exception as error:  # noqa: BLE001  of any type
            kind = type(error) if isinstance(error, PenstockError) else RetryableError
            raise kind(self._options.secrets.message(str(error))) from None

    def manifest(self, batch: Batch, content: Route, payloads: Sequence[RequestPayload]) -> Manifest:
        """See `Target`.

        Raises:
            SchemaMismatchError: of changes, two different rows of one key could be the last one.
            RetryableError: of changes, the row log cannot be read now.
        """
        if content == "direct":
            return self._manifests.encode_sent(batch, [one for one in payloads if isinstance(one, Sent)])
        files: list[DataFiles] = [one for one in payloads if not isinstance(one, Sent)]
        manifest = self._manifests.encode_files(batch, files)
        requests = self._rows_to_requests
        if isinstance(requests, ChangesRows) and self._log is not None:
            for logged in self._manifests.batches(manifest) or ():
                check_one_row_of_each_key(self._log, logged, requests)
        return manifest

    def mergeable(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        return self._manifests.mergeable(manifests)

    def merge(self, manifests: Sequence[Manifest], verified_version: int | None) -> Manifest:
        return self._manifests.merge(manifests)


_CHECKED: deque[tuple[object, pa.Schema]] = deque(maxlen=16)
"""What decoupled queries of this process have checked."""
