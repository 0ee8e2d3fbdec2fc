"""Claims: with `writeMode=upsert` the rows of a destination are those of the changes, one after the other.

A destination that takes no changes promises only that it refuses the option.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ...committers.contract import AlreadyCommitted, Committed, ManifestState
from ...committers.errors import ConfigurationError, PenstockError, SchemaMismatchError
from ...committers.store.sql import SqlManifestStore, open_store
from ..faults import Lost, crash_at
from .claims import Claims, check_nothing_left
from .deliveries import deliver
from .harness import ChangedRow, DestinationHarness
from .query import Query

COLUMNS = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("text", pa.string()), ("op", pa.string())])
"""`n` orders the rows of an id. `op` is `d` in rows that delete, and not in the destination."""
OPTIONS = {
    "writeMode": "upsert",
    "keys": "id",
    "orderBy": "n",
    "deleteWhen": "op = 'd'",
    "dropColumns": "op",
}

Row = tuple[int, int, "str | None"]


def changes(*rows: Row | tuple[int, int]) -> pa.Table:
    """Return rows that insert or replace (id, n, text), and rows that delete (id, n)."""
    whole = [(*row, "u") if len(row) == 3 else (*row, None, "d") for row in rows]
    columns = zip(*whole, strict=True) if whole else [[] for _ in COLUMNS]
    arrays = [pa.array(values, column.type) for values, column in zip(columns, COLUMNS, strict=True)]
    return pa.table(arrays, schema=COLUMNS)


def messages(*events: tuple[str, int, tuple[int] | None, Row | None]) -> pa.Table:
    """Return messages of Debezium, as Kafka has them: operation, position in the log, old key, new row."""
    values = [
        {
            "op": op,
            "before": None if before is None else {"id": before[0]},
            "after": None if after is None else dict(zip(("id", "n", "text"), after, strict=True)),
            "source": {"connector": "postgresql", "lsn": lsn, "snapshot": "false"},
        }
        for op, lsn, before, after in events
    ]
    return pa.table({"value": pa.array([json.dumps(value).encode() for value in values], pa.binary())})


@dataclass(frozen=True)
class Upserts:
    """A query that changes rows, and its destination."""

    query: Query
    store: SqlManifestStore
    harness: DestinationHarness

    @property
    def is_taken(self) -> bool:
        """False if the destination takes no changes. Then it is checked here that it refuses them."""
        if self.harness.promises.takes_changes:
            return True
        with pytest.raises(ConfigurationError, match="writeMode"):
            self.query.plan(self.store, self.query.batch(0), COLUMNS)
        return False

    @property
    def ignores_late_rows(self) -> bool:
        """False if the destination ignores no late rows. Then it is checked here that it refuses to."""
        if self.harness.promises.ignores_late_rows:
            return True
        with pytest.raises(ConfigurationError, match="lateRows=ignore"):
            self.query.plan(self.store, self.query.batch(0), COLUMNS)
        return False

    def with_options(self, **options: str) -> Upserts:
        return Upserts(self.query.with_options(**options), self.store, self.harness)

    def without(self, *names: str) -> Upserts:
        options = {name: value for name, value in self.query.options.items() if name not in names}
        return Upserts(replace(self.query, options=options), self.store, self.harness)

    def run(self, batch_id: int, *parts: pa.Table, run_id: str = "r1") -> None:
        self.query.run(self.store, self.query.batch(batch_id), *parts, run_id=run_id)

    def check(self, *expected: Row) -> None:
        found: Sequence[ChangedRow] = self.harness.changed_rows()
        assert sorted(found, key=str) == sorted(expected, key=str)


class UpsertClaims(Claims):
    @pytest.fixture
    def upserts(self, harness: DestinationHarness, store: SqlManifestStore) -> Upserts:
        return upserts_of(harness, store)

    # What rows do ---------------------------------------------------------------------------------

    def test_rows_insert_replace_and_delete_by_key(self, upserts: Upserts) -> None:
        """Also a key that is not there, and keys that were deleted before."""
        if not upserts.is_taken:
            return
        upserts.run(0, changes((1, 1, "a"), (2, 1, "b")), changes((3, 1, "c"), (9, 1)))
        upserts.check((1, 1, "a"), (2, 1, "b"), (3, 1, "c"))
        upserts.run(1, changes((1, 2, "A"), (2, 2)), changes((4, 2, "d")))
        upserts.check((1, 2, "A"), (3, 1, "c"), (4, 2, "d"))
        upserts.run(2, changes((2, 3, "B"), (3, 3), (7, 3)))
        upserts.check((1, 2, "A"), (2, 3, "B"), (4, 2, "d"))

    @pytest.mark.parametrize("tasks", [1, 2, 5])
    def test_the_last_row_of_a_key_counts_whichever_task_has_written_it(
        self, upserts: Upserts, tasks: int
    ) -> None:
        """Insert, update and delete in one batch; the order of the rows does not matter, only `orderBy`."""
        if not upserts.is_taken:
            return
        upserts.run(0, changes((1, 1, "old"), (2, 1, "old"), (5, 1, "old")))
        rows: list[Any] = [
            (1, 4, "d"),
            (2, 4),
            (3, 3, "c"),
            (1, 3, "c"),
            (2, 2, "b"),
            (3, 4, "d"),
            (1, 5, "e"),
        ]
        rows += [(4, 2), (4, 3, "c"), (5, 2)]
        upserts.run(1, *(changes(*rows[number::tasks]) for number in range(tasks)))
        upserts.check((1, 5, "e"), (3, 4, "d"), (4, 3, "c"))

    def test_equal_rows_of_a_key_are_one(self, upserts: Upserts) -> None:
        """A source may repeat an event, in one task or in two. Without an order, too."""
        if not upserts.is_taken:
            return
        upserts.run(0, changes((1, 1, "a"), (1, 1, "a"), (2, 1)), changes((1, 1, "a"), (2, 1)))
        upserts.without("orderBy").run(1, changes((3, 1, "c"), (3, 1, "c")), changes((3, 1, "c")))
        upserts.check((1, 1, "a"), (3, 1, "c"))

    @pytest.mark.parametrize("tasks", [1, 2])
    @pytest.mark.parametrize("second", [(1, 2, "y"), (1, 2)])
    def test_two_different_rows_of_a_key_without_an_order_are_refused(
        self, upserts: Upserts, tasks: int, second: Any
    ) -> None:
        """There is no random winner. Nothing of the batch is prepared."""
        if not upserts.is_taken:
            return
        upserts.run(0, changes((1, 1, "a")))
        rows = [(1, 2, "x"), second]
        for ordered in (upserts, upserts.without("orderBy")):
            with pytest.raises(SchemaMismatchError, match="orderBy"):
                ordered.run(1, *(changes(*rows[number::tasks]) for number in range(tasks)))
        assert upserts.query.state(upserts.store, 1) is None
        upserts.check((1, 1, "a"))
        check_nothing_left(upserts.harness)

    def test_batches_are_applied_in_their_order(self, upserts: Upserts) -> None:
        """By default an older row of a later batch counts: it comes later."""
        if not upserts.is_taken:
            return
        upserts.run(0, changes((1, 5, "new"), (2, 5, "new"), (3, 5)))
        upserts.run(1, changes((1, 3, "old"), (2, 3), (3, 3, "old")))
        upserts.check((1, 3, "old"), (3, 3, "old"))

    def test_with_late_rows_ignored_an_older_row_changes_nothing(self, upserts: Upserts) -> None:
        """An equal one does: it is not older."""
        if not upserts.is_taken:
            return
        ignoring = upserts.with_options(lateRows="ignore")
        if not ignoring.ignores_late_rows:
            return
        ignoring.run(0, changes((1, 5, "new"), (2, 5, "new"), (3, 5, "new"), (4, 5, "new")))
        ignoring.run(1, changes((1, 4, "old"), (2, 4), (3, 6)), changes((4, 5, "again"), (5, 1, "other")))
        ignoring.check((1, 5, "new"), (2, 5, "new"), (4, 5, "again"), (5, 1, "other"))

    def test_with_late_rows_ignored_an_older_row_brings_no_deleted_key_back(self, upserts: Upserts) -> None:
        """Nor after other batches; a newer one does."""
        if not upserts.is_taken:
            return
        ignoring = upserts.with_options(lateRows="ignore")
        if not ignoring.ignores_late_rows:
            return
        ignoring.run(0, changes((1, 1, "a"), (2, 1, "b")), changes((3, 5)))
        ignoring.run(1, changes((1, 5)), changes((2, 5)))
        ignoring.run(2, changes((1, 4, "late"), (3, 4, "late"), (2, 6, "newer")))
        ignoring.check((2, 6, "newer"))
        ignoring.run(3, changes((1, 3, "later"), (3, 6, "newer")))
        ignoring.check((2, 6, "newer"), (3, 6, "newer"))

    def test_random_changes_make_the_rows_of_a_dict(self, upserts: Upserts) -> None:
        """Several rows of a key in a batch, in any number of tasks; some batches are written twice."""
        if not upserts.is_taken:
            return
        rng, rows = random.Random(7), dict[int, Row]()
        for number in range(6):
            made: list[Row | tuple[int, int]] = []
            for n in range(rng.randint(1, 12)):  # distinct, so that the order decides
                row_id = rng.randint(1, 6)
                made.append((row_id, n) if rng.random() < 0.3 else (row_id, n, f"{number}.{n}"))
            for last in sorted(made, key=lambda row: row[1]):
                rows.pop(last[0], None)
                if len(last) == 3:
                    rows[last[0]] = last
            rng.shuffle(made)
            tasks = rng.randint(1, 3)
            if number % 3 == 1:
                with crash_at(rng.choice(["prepare.start", "commit.start", "commit.landed"])):
                    upserts.run(number, changes(*made), run_id=f"r{number}")
            parts = (changes(*made[task::tasks]) for task in range(tasks))
            upserts.run(number, *parts, run_id=f"r{number}, again")
            upserts.check(*rows.values())

    # Messages of sources of changes ---------------------------------------------------------------

    @pytest.mark.parametrize("late_rows", ["apply", "ignore"])
    def test_messages_of_debezium_insert_replace_and_delete_by_key(
        self, upserts: Upserts, late_rows: str
    ) -> None:
        """In the order of their log, with a new key for a row. A message that is late may be ignored."""
        if not upserts.is_taken or (late_rows == "ignore" and not upserts.harness.promises.ignores_late_rows):
            return
        of_messages = upserts.without("orderBy", "deleteWhen", "dropColumns").with_options(
            changes="debezium", valueColumns="id BIGINT, n BIGINT, text STRING", lateRows=late_rows
        )
        of_messages.run(
            0,
            messages(("c", 10, None, (1, 1, "a")), ("u", 12, (1,), (1, 3, "c"))),
            messages(("u", 11, (1,), (1, 2, "b")), ("r", 9, None, (2, 1, "x")), ("c", 13, None, (3, 1, "y"))),
        )
        of_messages.check((1, 3, "c"), (2, 1, "x"), (3, 1, "y"))
        of_messages.run(1, messages(("u", 14, (2,), (4, 2, "X")), ("d", 15, (3,), None)))
        of_messages.check((1, 3, "c"), (4, 2, "X"))
        of_messages.run(2, messages(("u", 8, (1,), (1, 0, "late"))))
        of_messages.check((1, 3, "c") if late_rows == "ignore" else (1, 0, "late"), (4, 2, "X"))

    # Keys -----------------------------------------------------------------------------------------

    def test_a_row_without_a_key_is_a_bad_row(self, upserts: Upserts) -> None:
        """So is one without a place in the order."""
        if not upserts.is_taken:
            return
        rows = changes((1, 1, "a"), (None, 1, "b"), (3, None, "c"), (None, 1))  # type: ignore[arg-type]
        with pytest.raises(SchemaMismatchError, match="NULL in id"):
            upserts.run(0, rows)
        upserts.with_options(badRows="drop").run(0, rows)
        upserts.check((1, 1, "a"))

    @pytest.mark.parametrize(
        "options",
        [
            {"keys": "nothing"},
            {"keys": "ratio"},
            {"orderBy": "ratio"},
            {"keys": "id, op"},
            {"deleteWhen": "nothing = 1"},
            {"deleteWhen": "op ="},
            {"dropColumns": "nothing"},
            {"lateRows": "ignore", "dropColumns": "op, n"},
        ],
    )
    def test_options_that_fit_no_row_are_refused_before_any_row_moves(
        self, upserts: Upserts, options: Mapping[str, str]
    ) -> None:
        """Unknown columns, floating-point keys and orders, keys that the destination does not get."""
        if not upserts.is_taken:
            return
        schema = COLUMNS.append(pa.field("ratio", pa.float64()))
        query = upserts.with_options(**options).query
        with pytest.raises(PenstockError, match=r"keys|orderBy|deleteWhen|dropColumns"):
            plan_batch_of(query, upserts.store, schema)

    def test_a_batch_that_replaces_all_rows_is_refused(self, upserts: Upserts) -> None:
        if not upserts.is_taken:
            return
        query = upserts.query
        with pytest.raises(ConfigurationError, match="writeMode=upsert"):
            query.plan(upserts.store, query.batch(0), COLUMNS, overwrite=True)

    def test_keys_of_several_columns_are_compared_by_value(self, upserts: Upserts) -> None:
        """Decimals, texts with characters of all lengths, and dates."""
        if not upserts.is_taken:
            return
        schema = pa.schema([*COLUMNS, pa.field("amount", pa.decimal128(10, 2)), pa.field("day", pa.date32())])
        of_keys = upserts.harness.options_of_keys(("text", "amount", "day"))
        if of_keys is None:
            return
        several = upserts.with_options(keys="text, amount, day", **of_keys)
        first, second = date(1969, 12, 31), date(2024, 2, 29)

        def rows(*some: Sequence[Any]) -> pa.Table:
            columns = [pa.array(values, column.type) for values, column in zip(zip(*some), schema)]  # noqa: B905
            return pa.table(columns, schema=schema)

        several.run(
            0,
            rows((1, 1, "é", "u", Decimal("1.10"), first), (2, 1, "é", "u", Decimal("1.10"), second)),
            rows((3, 1, "e\u0301", "u", Decimal("1.10"), first), (4, 1, "", "u", Decimal("-0.01"), first)),
        )
        several.run(
            1,
            rows((5, 2, "é", "u", Decimal("1.1"), first), (6, 2, "é", "d", Decimal("1.10"), second)),
            rows((7, 2, "e\u0301", "d", Decimal("1.11"), first), (8, 2, "", "u", Decimal("-0.01"), first)),
        )
        several.check((5, 2, "é"), (3, 1, "e\u0301"), (8, 2, ""))

    def test_a_key_that_moves_to_another_partition_leaves_the_old_one(self, upserts: Upserts) -> None:
        if not upserts.is_taken or not (by_text := upserts.harness.options_by("text")):
            return
        moving = upserts.with_options(**by_text)
        if not upserts.harness.promises.moves_keys:
            with pytest.raises(ConfigurationError, match="keys"):
                moving.query.plan(moving.store, moving.query.batch(0), COLUMNS)
            return
        moving.run(0, changes((1, 1, "a"), (2, 1, "a"), (3, 1, "b")))
        moving.run(1, changes((1, 2, "b")), changes((3, 2)))
        moving.check((1, 2, "b"), (2, 1, "a"))

    # Once -----------------------------------------------------------------------------------------

    def test_changes_are_invisible_until_their_batch_is_committed(self, upserts: Upserts) -> None:
        if not upserts.is_taken:
            return
        upserts.run(0, changes((1, 1, "a"), (2, 1, "b")))
        upserts.query.prepare(upserts.store, upserts.query.batch(1), changes((1, 2, "A"), (2, 2)))
        upserts.check((1, 1, "a"), (2, 1, "b"))
        upserts.run(1, changes((1, 2, "A"), (2, 2)), run_id="r2")
        upserts.check((1, 2, "A"))

    def test_changes_that_are_committed_again_change_nothing(self, upserts: Upserts) -> None:
        """Not even the row that another writer has added since."""
        if not upserts.is_taken:
            return
        query = upserts.query
        manifest = query.build(upserts.store, query.batch(0), changes((1, 1, "a"), (2, 1)))
        assert isinstance(query.target().commit(manifest), Committed)
        upserts.harness.append(2)
        assert isinstance(query.target().commit(manifest), AlreadyCommitted)
        upserts.check((1, 1, "a"), (2, None, None))  # type: ignore[arg-type]

    def test_a_replay_by_other_tasks_makes_the_same_rows(
        self, upserts: Upserts, other_store: SqlManifestStore
    ) -> None:
        """After a crash, and after the store was lost."""
        if not upserts.is_taken:
            return
        rows: list[Any] = [(1, 1, "a"), (2, 3), (1, 3, "c"), (2, 2, "b"), (3, 1, "z"), (1, 2)]
        with crash_at("prepare.start"):
            upserts.run(0, changes(*rows))
        upserts.run(0, *(changes(*rows[number::3]) for number in range(3)), run_id="r2")
        upserts.check((1, 3, "c"), (3, 1, "z"))
        query = upserts.query
        query.run(other_store, query.batch(0), changes(*reversed(rows)), run_id="r3")
        query.run(other_store, query.batch(1), changes((3, 2, "y")), run_id="r3")
        upserts.check((1, 3, "c"), (3, 2, "y"))

    @pytest.mark.parametrize("point", ["prepare.start", "prepare.done", "commit.start", "commit.landed"])
    def test_a_crash_loses_and_doubles_no_change(self, upserts: Upserts, point: str) -> None:
        if not upserts.is_taken:
            return
        upserts.run(0, changes((1, 1, "a"), (2, 1, "b"), (3, 1, "c")))
        parts = changes((1, 2, "A"), (2, 2)), changes((1, 3, "AA"), (4, 1, "d"))
        with crash_at(point):
            upserts.run(1, *parts)
        upserts.run(1, *parts, run_id="r2")
        upserts.check((1, 3, "AA"), (3, 1, "c"), (4, 1, "d"))
        assert upserts.query.state(upserts.store, 1) is ManifestState.COMMITTED
        check_nothing_left_but_keys(upserts.harness)

    @pytest.mark.parametrize("lost", ["request", "response"])
    def test_changes_whose_commit_was_lost_are_applied_once(self, upserts: Upserts, lost: Lost) -> None:
        if not upserts.is_taken:
            return
        upserts.run(0, changes((1, 1, "a"), (2, 1, "b")))
        parts = changes((1, 2, "A")), changes((2, 2), (3, 1, "c"))
        with suppress(PenstockError), upserts.harness.losing(lost):
            upserts.run(1, *parts)
        upserts.run(1, *parts, run_id="r2")
        upserts.run(2, changes((3, 2, "C")), run_id="r2")
        upserts.check((1, 2, "A"), (3, 2, "C"))

    def test_two_drivers_that_change_the_same_rows_at_once_change_them_once(
        self, upserts: Upserts, tmp_path: Path
    ) -> None:
        if not upserts.is_taken:
            return
        query, barrier = upserts.query, threading.Barrier(2)
        upserts.run(0, changes((1, 1, "a"), (2, 1, "b")))

        def drive(name: str) -> None:
            with open_store(f"sqlite:///{tmp_path}/{name}.db") as store:
                plan = query.plan(store, query.batch(1), COLUMNS)
                messages = query.write(plan, [changes((1, 2, "A")), changes((2, 2), (3, 1, "c"))], name)
                barrier.wait(60)
                query.commit(store, messages)

        assert _errors_of(drive, ("r2", "r3"), barrier.abort) == []
        upserts.check((1, 2, "A"), (3, 1, "c"))

    def test_rows_that_others_add_before_the_commit_are_replaced_too(self, upserts: Upserts) -> None:
        """What a batch deletes is looked up at its commit, not when it is planned or prepared."""
        if not upserts.is_taken:
            return
        query = upserts.query
        upserts.run(0, changes((1, 1, "a"), (2, 1, "b")))
        manifest = query.prepare(upserts.store, query.batch(1), changes((1, 2, "A"), (3, 2)))
        upserts.harness.append(3)
        upserts.harness.append(4)
        query.recover(upserts.store)
        upserts.check((1, 2, "A"), (2, 1, "b"), (4, None, None))  # type: ignore[arg-type]
        assert manifest.rows == 2

    # Deliveries and maintenance -------------------------------------------------------------------

    def test_a_delivery_of_many_batches_makes_the_rows_of_one_after_the_other(self, upserts: Upserts) -> None:
        if not upserts.is_taken:
            return
        decoupled = upserts.with_options(delivery="decoupled")
        decoupled.run(0, changes((1, 1, "a"), (2, 1, "b")), changes((3, 1, "c")))
        decoupled.run(1, changes((1, 2, "A"), (2, 2)), changes((4, 1, "d")))
        decoupled.run(2, changes((2, 1, "again"), (4, 2)), changes((1, 1, "older")))
        deliver(upserts.store)
        decoupled.check((1, 1, "older"), (2, 1, "again"), (3, 1, "c"))
        decoupled.run(3, changes((3, 2)))
        deliver(upserts.store)
        decoupled.check((1, 1, "older"), (2, 1, "again"))
        assert not upserts.store.streams(is_pending=True)

    def test_a_crash_of_a_delivery_loses_and_doubles_no_change(self, upserts: Upserts) -> None:
        if not upserts.is_taken:
            return
        decoupled = upserts.with_options(delivery="decoupled")
        for point in ("deliver.claimed", "commit.start", "commit.landed"):
            number = {"deliver.claimed": 0, "commit.start": 2, "commit.landed": 4}[point]
            decoupled.run(number, changes((1, number, "a"), (number, 0, "b")))
            decoupled.run(number + 1, changes((1, number + 1, "A"), (number, 0)))
            with suppress(AssertionError), crash_at(point):
                deliver(upserts.store)
            deliver(upserts.store)
            decoupled.check((1, number + 1, "A"))

    def test_changes_that_are_aborted_leave_nothing_behind(self, upserts: Upserts) -> None:
        if not upserts.is_taken:
            return
        query = upserts.query
        upserts.run(0, changes((1, 1, "a")))
        messages = query.write(
            query.plan(upserts.store, query.batch(1), COLUMNS), [changes((1, 2, "A")), changes((2, 1))]
        )
        query.abort([*messages, None])
        upserts.check((1, 1, "a"))
        check_nothing_left(upserts.harness)


def upserts_of(harness: DestinationHarness, store: SqlManifestStore) -> Upserts:
    promises = harness.promises
    where = harness.options_of_changes if promises.takes_changes else harness.options
    query = Query(harness, options=OPTIONS, destination_options=where, store=store)
    return Upserts(query, store, harness)


def plan_batch_of(query: Query, store: SqlManifestStore, schema: pa.Schema) -> None:
    query.plan(store, query.batch(0), schema)


def check_nothing_left_but_keys(harness: DestinationHarness) -> None:
    """A crash right after the commit leaves the key files of the batch to clean-up."""
    if harness.promises.discards:
        left = [name for name in harness.uncommitted() if ".keys." not in name]
        assert len(left) <= 4, left


def _errors_of(
    run: Callable[[str], None], names: Iterable[str], on_error: Callable[[], None]
) -> list[BaseException]:
    errors: list[BaseException] = []

    def guarded(name: str) -> None:
        try:
            run(name)
        except BaseException as error:  # noqa: BLE001  reported by the caller
            errors.append(error)
            on_error()

    threads = [threading.Thread(target=guarded, args=[name]) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors
