"""The rows of a batch that waits for its commit: `penstock show --rows`, and what `penstock skip` saves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..committers.contract import ManifestState
from ..committers.errors import ConfigurationError, TableNotSupportedError
from ..committers.requests.content import LOGGED_FOR_TABLE
from ..committers.texts.row_text import row_text
from ..datasource.destinations import stored_table
from ..datasource.requests.stored import StoredRequests
from ..datasource.stored.batch_rows import HoldsRows

if TYPE_CHECKING:
    from ..committers.contract import Manifest, ManifestRecord
    from ..committers.store.sql import SqlManifestStore
    from ..committers.store.status import StreamStatus
    from ..datasource.stored.batch_rows import WaitingRows
    from ..datasource.stored.table_access import TableAccess


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A row to show."""

    part: int
    row: int
    text: str
    """As a JSON object."""

    def to_json(self) -> dict[str, Any]:
        return {"part": self.part, "row": self.row, "values": json.loads(self.text)}


def waiting_rows(
    store: SqlManifestStore, stream: StreamStatus, manifest: Manifest, access: TableAccess
) -> Iterator[WaitingRows]:
    """Yield the rows of a batch.

    Raises:
        TableNotSupportedError: Penstock does not read rows of this batch back.
        TableChangedError: a file or a staging table is missing.
        RetryableError: they cannot be read now.
    """
    stored: Any = stored_table(stream, access)
    if manifest.version == LOGGED_FOR_TABLE:
        storage = access.for_object_store(())
        stored = StoredRequests(stream.kind, stream.key.table_uri, storage, LOGGED_FOR_TABLE)
    if not isinstance(stored, HoldsRows):
        raise TableNotSupportedError(
            f"The destination of kind {stream.kind} has no way to read the rows of a batch back."
        )
    return stored.batch_rows(manifest, store)


def shown_rows(
    store: SqlManifestStore,
    stream: StreamStatus,
    record: ManifestRecord,
    manifest: Manifest,
    access: TableAccess,
    limit: int,
) -> list[ShownRow]:
    """Return the first rows of a batch that waits.

    Raises:
        ConfigurationError: the batch does not wait. And the errors of `waiting_rows`.
    """
    import pyarrow as pa

    if record.state is ManifestState.COMMITTED:
        raise ConfigurationError(
            f"Batch {record.batch.batch_id} of {stream.key} is COMMITTED: its rows are in the table. --rows "
            "shows those of a batch that waits."
        )
    rows = (
        ShownRow(some.part, some.row + number, row_text(pa.Table.from_batches([some.rows.slice(number, 1)])))
        for some in waiting_rows(store, stream, manifest, access)
        for number in range(some.rows.num_rows)
    )
    return list(islice(rows, limit))
