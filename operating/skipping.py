"""What `penstock skip` does with the rows of a batch: saves them as dead letters, before it is given up.

They are a batch of a stream of their own in the dead-letter table, with its own token. A process that dies
between the two leaves rows there whose batch is not skipped; `penstock dead-letters` ignores these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..committers.contract import Batch
from ..committers.dead_letters import SKIPPED, SKIPPING, dead_letter, skipped_stream
from ..committers.errors import ConfigurationError, PenstockError
from ..datasource.dead_letters import committed_up_to, letters_batch, write_rows
from ..datasource.destinations import stored_table
from ..datasource.plug_ins import data_source_of
from ..datasource.settings import DEAD_LETTERS, settings_of
from ..datasource.sink import open_table
from ..datasource.stored.stored_table import Readable
from ..delivery.stream_settings import (
    StreamSettings,
    access_beside,
    access_to_letters,
    build_letter_sink,
    find_letters,
)
from ..writers.local_path import is_relative
from .batch_rows import waiting_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from ..committers.contract import Manifest
    from ..committers.store.sql import SqlManifestStore
    from ..committers.store.status import StreamStatus
    from ..datasource.sink import Sink
    from ..datasource.stored.table_access import TableAccess

FOLDER = "penstock-skipped"
"""Folder of the default table of skipped rows, in the checkpoint."""


def delivered_rows(store: SqlManifestStore, manifest: Manifest) -> int:
    """Return how many rows of a batch, from the first one on, the destination has acknowledged. Others may be
    there too if it is request-based.
    """
    from ..committers.requests.content import RequestManifests

    half = store.progress.read(manifest.batch.stream).in_delivery
    if half is None or (half.batch_id, half.digest) != (manifest.batch.batch_id, manifest.batch.digest):
        return 0
    (logged,) = RequestManifests(manifest.kind).batches(manifest) or (None,)
    return half.position if logged is not None and logged.rows_id == half.rows_id else 0


def place_of_saved(
    store: SqlManifestStore, stream: StreamStatus, access: TableAccess, save_to: str | None
) -> Sink[Any, Any]:
    """Return the table for skipped rows: the given one, the query's dead-letter table if Penstock can read
    it, or a Delta table in the checkpoint.

    Raises:
        ConfigurationError: there is none.
    """
    settings = StreamSettings.parse(stream.settings)
    letters = find_letters(store, stream, settings)
    if save_to is None and letters is not None:
        own = access_to_letters(letters, stream, access)
        if isinstance(stored_table(letters, own), Readable):
            return build_letter_sink(letters, stream, access)
    checkpoint = "" if is_relative(settings.checkpoint or ".") else settings.checkpoint
    location = save_to or (checkpoint and f"{checkpoint.rstrip('/')}/{FOLDER}")
    if not location:
        raise ConfigurationError(
            f"The query of {stream.key} has no dead-letter table, and the store does not know where its "
            "checkpoint is. Say where to save the rows of the batch: --save-to LOCATION, of a Delta table. "
            "Or give them up for good: --discard-rows."
        )
    storage = access_beside(stream, "delta", access).storage
    given = {f"storage.{key}": value for key, value in storage.items()} if "://" in location else {}
    sink: Sink[Any, Any] = data_source_of("penstock.delta")({**given, "path": location}).sink()
    return sink


def save_rows(
    store: SqlManifestStore,
    stream: StreamStatus,
    manifest: Manifest,
    access: TableAccess,
    sink: Sink[Any, Any],
    message: str,
) -> None:
    """Save the rows of a batch that its destination does not have, unless an earlier call has done it. Also
    those that were refused before, and that would become dead letters with the batch.

    Raises:
        ConfigurationError: they cannot be read or saved. Nothing was skipped.
    """
    batch, start = manifest.batch, delivered_rows(store, manifest)
    key = skipped_stream(stream.key, sink.table_uri)
    name = f"skipped rows of {stream.query_name}" if stream.query_name else "skipped rows"
    settings = settings_of(sink.options, delivery=DEAD_LETTERS)
    digest = hashlib.sha256(f"{batch.batch_id} {batch.digest} {start}".encode()).hexdigest()
    try:
        store.register_stream(key, sink.kind, name, settings=settings)
        last = committed_up_to(store, sink, key)
        token = open_table(sink, store).token(key.query_id)
        if token is None or not token.matches(digest):
            rows = waiting_rows(store, stream, manifest, access)
            refused = (letters_batch(batch, some) for some in store.dead_letters.of_batch(batch))
            letters = chain(_letters(batch, rows, start, message), refused)
            write_rows(store, sink, Batch(key, last + 1, digest), lambda: letters)
    except PenstockError as error:
        raise ConfigurationError(
            f"The rows of batch {batch.batch_id} of {stream.key} could not be saved in {sink.table_uri}, and "
            f"the batch was not skipped: {error}\nTo save them elsewhere, in a Delta table: --save-to "
            "LOCATION. To give them up for good: --discard-rows."
        ) from error


def _letters(batch: Batch, rows: Iterator[Any], start: int, message: str) -> Iterator[pa.RecordBatch]:
    position = 0
    for some in rows:
        first = max(start - position, 0)
        position += some.rows.num_rows
        letters = [
            dead_letter(some.rows.slice(number, 1), SKIPPING, some.part, some.row + number, SKIPPED, message)
            for number in range(first, some.rows.num_rows)
        ]
        if letters:
            yield letters_batch(batch, letters)
