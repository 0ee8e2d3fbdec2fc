"""How rows become commands of Redis: `penstock.redis`. Runs on executors and in the delivery process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from ...committers.contract import Changes
from ...committers.requests.contract import RowPlace
from ..requests.entry import Entry
from ..requests.json_requests import JsonRequests, check_rows
from ..requests.json_rows import json_objects
from ..requests.row_ids import row_ids
from ..requests.template import Template
from .fence import SCRIPT, Fenced, fence_key, place_of, script_arguments
from .row_hashes import row_commands
from .target import RedisTarget

if TYPE_CHECKING:
    from .client import Payload, RedisClient
    from .row_hashes import Command

_OVERHEAD_BYTES = 64
"""Of a command, besides key and row."""


@dataclass(frozen=True, slots=True)
class RedisRequests(JsonRequests):
    """See `Requests` and `ChecksDestination`. Each row is a JSON object, or a hash."""

    target: RedisTarget
    deletes: bool = False
    """True: rows may delete their key."""

    def new_client(self) -> RedisClient:
        from .client import RedisClient

        return RedisClient(self.target, self.settings.limits.in_flight_requests_max)

    def check_schema(self, rows: pa.Schema) -> None:
        JsonRequests.check_schema(self, rows)
        for template in self.target.templates:
            template.check(rows)

    def check_destination(self, rows: pa.Schema) -> None:
        target = self.target
        key, field = target.key.example, target.hash_field.example if target.hash_field else None
        commands = [target.command(key, field, "0", b"{}")]
        if target.structure == "row":
            commands.append(("HDEL", key, ""))
        if self.deletes:
            commands.append(target.deletion(key, field))
        if target.is_fenced:
            fenced = Fenced(fence_key("0", self.address), key, place_of(0, 0, 0), "0", b"{}")
            arguments = script_arguments([fenced], target.structure, target.length_max, is_between=False)
            commands += [("GET", fenced.fence), ("SET", fenced.fence, ""), ("EVAL", SCRIPT, *arguments)]
        target.check(*commands)

    # Changes by key ------------------------------------------------------------------------------------

    def check_changes(self, changes: Changes, rows: pa.Schema) -> None:
        """All changes are taken."""

    def why_whole(self, rows: pa.Schema) -> str:
        if self.target.structure == "row":
            return ""
        return "A row is one JSON text in Redis, which SET and HSET replace as a whole. Use structure=row"

    def deletion_checker(self) -> Callable[[pa.RecordBatch], None]:
        return partial(_check, None, self.target.templates)

    def upserts(
        self, rows: pa.RecordBatch, place: RowPlace, kept: Sequence[Collection[str]]
    ) -> Sequence[Entry[Payload]]:
        return (
            self._hashes(rows, place, kept) if self.target.structure == "row" else self.entries(rows, place)
        )

    def deletions(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Entry[Command]]:
        keys, fields, ids = *self._places(rows), place.ids(rows.num_rows)
        return [
            Entry(
                self.target.deletion(key, field),
                len(key.encode()) + _OVERHEAD_BYTES,
                row_id,
                number,
                (key, field),
            )
            for number, (row_id, key, field) in enumerate(zip(ids, keys, fields, strict=True))
        ]

    def _places(self, rows: pa.RecordBatch) -> tuple[Sequence[str], Sequence[str | None]]:
        """Return key and field of each row."""
        of_hash = self.target.hash_field
        return self.target.key.texts(rows), of_hash.texts(rows) if of_hash else [None] * rows.num_rows

    # Rows ----------------------------------------------------------------------------------------------

    def checker(self) -> Callable[[pa.RecordBatch], None]:
        return partial(_check, self.id_column, self.target.templates)

    def entries(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Entry[Payload]]:
        target = self.target
        if target.structure == "row":
            return self._hashes(rows, place, [()] * rows.num_rows)
        ids, (keys, fields) = row_ids(rows, place, self.id_column), self._places(rows)
        fence = fence_key(place.query_id, self.address)
        entries: list[Entry[Payload]] = []
        for number, (row, row_id, key, field) in enumerate(
            zip(json_objects(rows), ids, keys, fields, strict=True)
        ):
            command: Payload
            if target.is_fenced:
                at = place_of(place.batch_id, place.partition, place.row + number)
                command = Fenced(fence, key, at, row_id, row)
            else:
                command = target.command(key, field, row_id, row)
            size_bytes = len(row) + len(key.encode()) + _OVERHEAD_BYTES
            entries.append(Entry(command, size_bytes, row_id, place.position + number, (key, field)))
        return entries

    def _hashes(
        self, rows: pa.RecordBatch, place: RowPlace, kept: Sequence[Collection[str]]
    ) -> list[Entry[Payload]]:
        ids, keys = row_ids(rows, place, self.id_column), self.target.key.texts(rows)
        return [
            Entry(one, one.size_bytes + _OVERHEAD_BYTES, row_id, place.position + number, (key, None))
            for number, (one, row_id, key) in enumerate(
                zip(row_commands(rows, keys, kept), ids, keys, strict=True)
            )
        ]


def _check(id_column: str | None, templates: Sequence[Template], rows: pa.RecordBatch) -> None:
    check_rows(id_column, rows)
    for template in templates:
        template.texts(rows)
