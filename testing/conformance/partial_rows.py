"""Claims: with `updateColumns` a row leaves columns of the destination as they are.

A destination that does not compute rows promises only that it refuses the option.
"""

from __future__ import annotations

import pytest

from ...committers.errors import ConfigurationError, SchemaMismatchError
from ...committers.store.sql import SqlManifestStore
from ..faults import crash_at
from .claims import Claims, check_nothing_left
from .deliveries import deliver
from .harness import DestinationHarness
from .upserts import COLUMNS, Upserts, changes, check_nothing_left_but_keys, messages, upserts_of

UNAVAILABLE = "__debezium_unavailable_value"


class PartialRowClaims(Claims):
    @pytest.fixture
    def partial(self, harness: DestinationHarness, store: SqlManifestStore) -> Upserts:
        return partial_of(harness, store)

    def test_null_keeps_the_value_that_the_destination_has(self, partial: Upserts) -> None:
        """Of a key that is not there, or that was deleted, there is nothing to keep."""
        if not computes(partial, "updateColumns"):
            return
        partial.run(0, changes((1, 1, "a"), (2, 1, "b")), changes((3, 1, "c")))
        partial.run(1, changes((1, 2, None), (2, 2)), changes((3, 2, "C"), (4, 2, None)))
        partial.check((1, 2, "a"), (3, 2, "C"), (4, 2, None))
        partial.run(2, changes((2, 3, None), (4, 3, "d")), changes((1, 3, None), (3, 3, None)))
        partial.check((1, 3, "a"), (2, 3, None), (3, 3, "C"), (4, 3, "d"))

    def test_a_column_that_the_query_does_not_have_keeps_its_value(self, partial: Upserts) -> None:
        if not computes(partial, "updateColumns"):
            return
        partial.run(0, changes((1, 1, "a"), (2, 1, "b")))
        rows = changes((1, 2, "lost"), (2, 2), (3, 2, "lost")).drop_columns(["text"])
        partial.run(1, rows)
        partial.check((1, 2, "a"), (3, 2, None))

    def test_other_columns_than_the_named_ones_become_null(self, partial: Upserts) -> None:
        if not computes(partial, "updateColumns"):
            return
        named = partial.with_options(keys="id", orderBy="op", deleteWhen="op = 'd'", updateColumns="text")
        named.run(0, changes((1, 1, "a")))
        named.run(1, changes((1, None, None)))  # type: ignore[arg-type]
        named.check((1, None, "a"))  # type: ignore[arg-type]
        query = partial.with_options(updateColumns="nothing").query
        with pytest.raises(ConfigurationError, match="updateColumns names 'nothing'"):
            query.plan(partial.store, query.batch(2), COLUMNS)

    @pytest.mark.parametrize("tasks", [1, 3])
    def test_rows_of_a_batch_complete_each_other_in_their_order(self, partial: Upserts, tasks: int) -> None:
        """Whichever tasks have written them. A deletion in between leaves nothing to keep."""
        if not computes(partial, "updateColumns"):
            return
        partial.run(0, changes((1, 0, "old"), (2, 0, "old"), (3, 0, "old")))
        rows = [(1, 1, "a"), (2, 1, "b"), (1, 3, None), (2, 2), (3, 2, None), (1, 2, "c"), (2, 3, None)]
        rows += [(4, 3, None), (3, 1, None), (4, 2, "d")]
        partial.run(1, *(changes(*rows[number::tasks]) for number in range(tasks)))  # type: ignore[arg-type]
        partial.check((1, 3, "c"), (2, 3, None), (3, 2, "old"), (4, 3, "d"))

    @pytest.mark.parametrize("tasks", [1, 2])
    def test_two_rows_of_one_place_that_give_different_values_are_refused(
        self, partial: Upserts, tasks: int
    ) -> None:
        """Also before the last row, which keeps the value of one of them."""
        if not computes(partial, "updateColumns"):
            return
        rows = [(1, 1, "a"), (1, 1, "b"), (1, 2, None)]
        with pytest.raises(SchemaMismatchError, match="orderBy"):
            partial.run(0, *(changes(*rows[number::tasks]) for number in range(tasks)))
        check_nothing_left(partial.harness)

    def test_a_delivery_completes_the_rows_of_its_batches_one_after_the_other(self, partial: Upserts) -> None:
        """A late row changes nothing, and gives no value to another row."""
        if not computes(partial, "updateColumns"):
            return
        late = partial.with_options(lateRows="ignore", delivery="decoupled")
        late.run(0, changes((1, 5, "a"), (2, 5, "b"), (3, 5, None)))
        late.run(1, changes((1, 6, None), (2, 4, "late"), (3, 4, "late")))
        late.run(2, changes((2, 7, None), (3, 6, None), (1, 5, "late")))
        deliver(late.store)
        late.check((1, 6, "a"), (2, 7, "b"), (3, 6, None))
        late.run(3, changes((2, 6, None), (3, 7, None)))
        deliver(late.store)
        late.check((1, 6, "a"), (2, 7, "b"), (3, 7, None))

    def test_a_value_that_a_message_does_not_have_is_kept(self, partial: Upserts) -> None:
        """As Debezium sends an update of Postgres that leaves a large value as it is. Or the row is bad."""
        promises = partial.harness.promises
        if not partial.is_taken or (promises.updates_fields and not promises.computes_rows):
            return
        of_messages = partial.without("updateColumns", "orderBy", "deleteWhen", "dropColumns").with_options(
            changes="debezium", valueColumns="id BIGINT, n BIGINT, text STRING"
        )
        of_messages.run(0, messages(("c", 10, None, (1, 1, "a")), ("c", 11, None, (2, 1, "b"))))
        left_out = messages(("u", 12, (1,), (1, 2, UNAVAILABLE)), ("u", 13, (2,), (2, 2, "B")))
        if not promises.computes_rows:
            with pytest.raises(SchemaMismatchError, match="text"):
                of_messages.run(1, left_out)
            return
        of_messages.run(1, left_out, messages(("u", 14, (2,), (2, 3, UNAVAILABLE))))
        of_messages.check((1, 2, "a"), (2, 3, "B"))

    @pytest.mark.parametrize("point", ["prepare.done", "commit.start", "commit.landed"])
    def test_a_crash_completes_a_row_once(self, partial: Upserts, point: str) -> None:
        """The value comes from the row that the destination has at the commit."""
        if not computes(partial, "updateColumns"):
            return
        partial.run(0, changes((1, 1, "a"), (2, 1, "b")))
        with crash_at(point):
            partial.run(1, changes((1, 2, None), (3, 2, None)))
        partial.run(1, changes((1, 2, None), (3, 2, None)), run_id="r2")
        partial.check((1, 2, "a"), (2, 1, "b"), (3, 2, None))
        check_nothing_left_but_keys(partial.harness)


def partial_of(harness: DestinationHarness, store: SqlManifestStore) -> Upserts:
    upserts = upserts_of(harness, store)
    return upserts.with_options(updateColumns="given")


def computes(upserts: Upserts, option: str) -> bool:
    """Return False if the destination computes no rows. Then it is checked here that it refuses them."""
    if upserts.harness.promises.computes_rows:
        return True
    if option == "updateColumns" and upserts.harness.promises.updates_fields:
        return False
    with pytest.raises(ConfigurationError, match=f"writeMode|{option}"):
        upserts.query.plan(upserts.store, upserts.query.batch(0), COLUMNS)
    return False
