"""A Lance table as it is now: its identity and the tokens of its queries.

Lance tables have no id. Penstock gives one to each table that it writes, in the table's configuration, which
survives overwrites and restores.

The token of a query is a value of the schema's metadata, `penstock.<query id>`. It is part of the same
version as the rows, so a restore removes both, and clean-up of old versions removes neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..contract import BATCH_WRITE_PREFIX, Batch, Token
from ..errors import TableChangedError
from ..file_tables import table_changes
from ..file_tables.table_changes import check_same_id

if TYPE_CHECKING:
    from lance import LanceDataset

KIND = "lance"
TABLE_ID = "penstock.table-id"
MAINTENANCE = "penstock.maintenance"
"""Set to `true` in the configuration of tables that Penstock created."""

TOKEN_PREFIX = "penstock."  # noqa: S105
_BATCH_WRITE_TOKEN_KEPT_MS = 7 * 24 * 3600 * 1000
"""Longer than a batch write may take to commit: only its own commit reads its token."""


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """The last batch of a query, as recorded in the table."""

    batch_id: int
    digest: str
    timestamp_ms: int
    origins: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> CommittedBatch:
        """Raises ValueError, KeyError or TypeError for other texts."""
        fields = json.loads(text)
        origins = tuple(map(str, fields["origins"]))
        return cls(int(fields["batch_id"]), str(fields["digest"]), int(fields["timestamp_ms"]), origins)

    def __str__(self) -> str:
        return json.dumps(
            {
                "batch_id": self.batch_id,
                "digest": self.digest,
                "timestamp_ms": self.timestamp_ms,
                "origins": self.origins,
            }
        )


def table_id_of(table: LanceDataset) -> str:
    """Return the id that Penstock has given to the table; empty if it has none."""
    return str(table.config().get(TABLE_ID, ""))


def dropped(table_uri: str) -> TableChangedError:
    return table_changes.dropped(f"Lance table {table_uri}")


def check_same_table(table: LanceDataset, table_id: str | None) -> None:
    """
    Raises:
        TableChangedError: the table has another id.
    """
    check_same_id(f"Lance table {table.uri}", table_id_of(table), table_id, name=TABLE_ID)


# Tokens ------------------------------------------------------------------------------------------------


def _metadata(table: LanceDataset) -> Mapping[str, str]:
    found = table.schema.metadata or {}
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, value in found.items()}


def committed_batch(table: LanceDataset, query_id: str) -> CommittedBatch | None:
    """Return the query's last batch in the table.

    Raises:
        TableChangedError: the record cannot be read; it was changed by hand.
    """
    text = _metadata(table).get(TOKEN_PREFIX + query_id)
    if text is None:
        return None
    try:
        return CommittedBatch.parse(text)
    except (ValueError, KeyError, TypeError) as error:
        raise TableChangedError(
            f"The metadata {TOKEN_PREFIX}{query_id} in the schema of the Lance table {table.uri} is not what "
            f"Penstock has written ({error!r}). Nothing was committed. Restore an earlier version."
        ) from error


def token_of(table: LanceDataset, query_id: str) -> Token | None:
    committed = committed_batch(table, query_id)
    return None if committed is None else Token(committed.batch_id, committed.digest)


def changes_for_token(
    table: LanceDataset, batch: Batch, origins: Sequence[str], now_ms: int
) -> dict[str, str | None]:
    """Return the changes of the schema's metadata that make the batch its query's token.

    Tokens of old batch writes are removed.
    """
    token = CommittedBatch(batch.batch_id, batch.digest, now_ms, tuple(origins))
    changes: dict[str, str | None] = {
        TOKEN_PREFIX + other: None
        for other, committed in _committed(table)
        if other.startswith(BATCH_WRITE_PREFIX)
        and committed.timestamp_ms < now_ms - _BATCH_WRITE_TOKEN_KEPT_MS
    }
    return {**changes, TOKEN_PREFIX + batch.stream.query_id: str(token)}


def recorded_origin(table: LanceDataset, query_id: str, origins: Sequence[str]) -> str | None:
    """Return the first of the origins from which another query has committed."""
    others = {
        origin for other, committed in _committed(table) if other != query_id for origin in committed.origins
    }
    return next((origin for origin in origins if origin in others), None)


def _committed(table: LanceDataset) -> Iterator[tuple[str, CommittedBatch]]:
    for key, text in _metadata(table).items():
        if key.startswith(TOKEN_PREFIX):
            with suppress(ValueError, KeyError, TypeError):  # other metadata
                yield key.removeprefix(TOKEN_PREFIX), CommittedBatch.parse(text)
