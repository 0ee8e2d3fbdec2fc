"""The dead letters of a stream one by one, with their rows: `penstock dead-letters show`."""

from __future__ import annotations

from typing import Any

from ..committers.store.sql import SqlManifestStore
from ..datasource.dead_letters import LETTERS
from .dead_letters import StreamLetters, Wanted, named_rows, waiting_rows


def letter_rows(
    store: SqlManifestStore, found: StreamLetters, wanted: Wanted = Wanted()
) -> list[dict[str, Any]]:
    """Return the wanted dead letters, newest batch first, with their `id` and `state`.

    The state is `waiting` in the store, `delivered` into their table, or `sent again`.

    Raises:
        ConfigurationError: one of the wanted ids is unknown.
    """
    every = {
        "waiting": waiting_rows(store, found.stream.key),
        "delivered": LETTERS.empty_table() if found.delivered is None else found.delivered,
    }
    wanted.check_ids(every.values())
    rows = [
        {**row, "id": name, "state": "sent again" if name in found.resends.names else state}
        for state, letters in every.items()
        for name, row in named_rows(wanted.of(letters))
    ]
    rows.sort(key=lambda row: (-row["batch_id"], row["letter_id"]))
    return rows
