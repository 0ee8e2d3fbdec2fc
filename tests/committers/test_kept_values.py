"""From which rows the values come that a row keeps, against a dictionary of rows."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from penstock.committers.changes.kept_values import TABLE, Entries, not_late, sources
from penstock.committers.changes.key_files import Keys

COLUMNS = ("a", "b")


def entries_of(rows: list[dict[str, Any]]) -> Entries:
    def column(name: str, kind: pa.DataType) -> pa.Array:
        return pa.array([row[name] for row in rows], kind)

    kept = {name: pa.array([name in row["kept"] for row in rows], pa.bool_()) for name in COLUMNS}
    order = (column("order", pa.int64()),)
    keys = Keys((column("key", pa.int64()),), order, column("deleted", pa.bool_()), kept)
    return Entries(column("key", pa.int64()), column("batch", pa.int64()), keys)


def model(rows: list[dict[str, Any]], *, ignores_late: bool) -> dict[int, dict[str, int | None]]:
    """The number of the row with the value of each column, by key; of keys that are there."""
    state: dict[int, dict[str, int | None]] = {}
    newest: dict[int, int] = {}
    numbered = list(enumerate(rows))
    for batch in sorted({row["batch"] for row in rows}):
        for key in sorted({row["key"] for row in rows}):
            mine = [pair for pair in numbered if (pair[1]["batch"], pair[1]["key"]) == (batch, key)]
            mine.sort(key=lambda pair: pair[1]["order"])
            if not mine or (ignores_late and newest.get(key, -1) > mine[-1][1]["order"]):
                continue
            newest[key] = mine[-1][1]["order"]
            for number, row in mine:
                before = state.pop(key, {})
                if not row["deleted"]:
                    state[key] = {
                        name: before.get(name) if name in row["kept"] else number for name in COLUMNS
                    }
    return state


@pytest.mark.parametrize("ignores_late", [False, True])
def test_values_come_from_the_last_row_that_has_them(ignores_late: bool) -> None:
    """Batches count one after the other, whatever the order of the given rows is."""
    for seed in range(150):
        rng = random.Random(seed)
        orders = rng.sample(range(100), 40)
        in_table = [key for key in range(4) if rng.random() < 0.5]
        rows: list[dict[str, Any]] = [
            {"key": key, "batch": TABLE, "order": orders.pop(), "deleted": False, "kept": ()}
            for key in in_table
        ]
        for _ in range(rng.randrange(1, 20)):
            row: dict[str, Any] = {"key": rng.randrange(4), "batch": rng.randrange(3), "order": orders.pop()}
            kept = rng.sample(COLUMNS, rng.randrange(3))
            rows.append({**row, "deleted": rng.random() < 0.2, "kept": kept})
        rng.shuffle(rows)
        entries, numbers = entries_of(rows), list(range(len(rows)))
        if ignores_late:
            counting = not_late(entries, set())
            numbers = counting.to_pylist()
            entries = entries_of([rows[number] for number in numbers])
        found = {name: column.to_pylist() for name, column in sources(entries, COLUMNS).items()}
        keys = sorted({rows[number]["key"] for number in numbers})
        expected = model(rows, ignores_late=ignores_late)
        for name in COLUMNS:
            own = [None if number is None else numbers[number] for number in found[name]]
            assert dict(zip(keys, own, strict=True)) == {
                key: expected.get(key, {}).get(name) for key in keys
            }, seed
