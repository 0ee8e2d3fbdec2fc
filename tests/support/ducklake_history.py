"""Random histories of a DuckLake table, and the rows that a stream of it has to have."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.support.ducklake_table import DuckLakeTable

MERGE = "CALL ducklake_merge_adjacent_files('lake')"
FLUSH = "CALL ducklake_flush_inlined_data('lake')"
REWRITE = "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.01)"


def insert(first: int, count: int) -> str:
    return f"INSERT INTO events SELECT range FROM range({first}, {first + count})"


class History:
    """A random history of a table with the column `id`.

    Args:
        deletes: rows are also deleted and updated
        truncates: in rare cases all of them
    """

    def __init__(
        self, lake: DuckLakeTable, chance: random.Random, *, deletes: bool, truncates: bool = False
    ) -> None:
        self.lake, self.chance, self.deletes, self.truncates = lake, chance, deletes, truncates
        self.live: list[int] = []
        self.added: list[int] = []
        """By commits that only add rows."""
        self._next = 0

    def step(self) -> None:
        statements = list(self._statements())
        self.lake.sql(*statements)

    def _statements(self) -> Iterator[str]:
        kinds = ["insert"] * 5 + ["flush", "merge", "insert and delete", "other table"]
        kinds += ["delete", "update", "rewrite"] * 2 if self.deletes else []
        kind = self.chance.choice([*kinds, *(["replace", "truncate"] if self.truncates else [])])
        count = self.chance.choice([1, 3, 12, 30])
        new = list(range(self._next, self._next + count))
        some = self.chance.sample(self.live, min(len(self.live), self.chance.choice([1, 2, 15])))
        if kind == "insert":
            yield self._insert(new)
            self._add(new)
        elif kind == "insert and delete":
            yield from ("BEGIN", self._insert(new), f"DELETE FROM events WHERE id = {new[-1]}", "COMMIT")
            self._add(new[:-1])
        elif kind == "delete" and some:
            yield f"DELETE FROM events WHERE id IN ({', '.join(map(str, some))})"
            self._remove(some)
        elif kind == "update" and some:
            yield f"UPDATE events SET id = id + 1000000 WHERE id IN ({', '.join(map(str, some))})"
            self.live = [one + 1000000 if one in some else one for one in self.live]
        elif kind == "replace" and some:
            gone = f"DELETE FROM events WHERE id IN ({', '.join(map(str, some))})"
            yield from ("BEGIN", gone, self._insert(new), "COMMIT")
            self._remove(some)
            self.live += new
        elif kind == "truncate" and self.chance.random() < 0.3:
            yield "TRUNCATE events"
            self.live = []
        elif kind == "other table":
            yield f"CREATE TABLE other_{self._next} (id BIGINT)"
            self._next += 1
        else:
            yield {"flush": FLUSH, "rewrite": REWRITE}.get(kind, MERGE)

    def _insert(self, new: list[int]) -> str:
        self._next += len(new)
        return insert(new[0], len(new))

    def _add(self, ids: list[int]) -> None:
        self.live += ids
        self.added += ids

    def _remove(self, ids: list[int]) -> None:
        self.live = [one for one in self.live if one not in ids]
