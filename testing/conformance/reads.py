"""Claims: readers see each batch whole or not at all, and no row twice; streams of a table each row once."""

from __future__ import annotations

from contextlib import suppress

import pytest

from ...committers.errors import RetryableError
from ...committers.store.sql import SqlManifestStore
from ...datasource.file_table import Compactable
from ...datasource.reading.formats import STREAM_OPTIONS
from ...datasource.reading.tables import open_table
from ...readers.table import TableScan
from ..faults import crash_at
from ..table_stream import TableStream
from .claims import Claims
from .crashes import OF_A_DESTINATION, OF_THE_PROTOCOL
from .deliveries import deliver
from .harness import DestinationHarness
from .query import Query, ids

_POINTS = tuple(point for point in (*OF_THE_PROTOCOL, *OF_A_DESTINATION) if point != "table.created")
"""Of a batch into a table that is there."""


class ReadClaims(Claims):
    """Only for tables that Penstock reads: those with `read_options`."""

    @pytest.mark.parametrize("point", _POINTS)
    def test_a_reader_sees_a_batch_whole_or_not_at_all(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness, point: str
    ) -> None:
        """Or says that it cannot read now. Only for the points that the destination declares."""
        if not harness.read_options or point not in (*OF_THE_PROTOCOL, *harness.promises.crash_points):
            return
        query.run(store, query.batch(0), ids(0))
        with crash_at(point):
            query.run(store, query.batch(1), ids(1, 2), ids(3))
        with suppress(RetryableError):
            assert _ids(_opened(harness)) in ([0], [0, 1, 2, 3])
        query.run(store, query.batch(1), ids(1, 2), ids(3), run_id="r2")

        assert _ids(_opened(harness)) == [0, 1, 2, 3]

    def test_a_reader_sees_no_row_twice_after_a_delivery_in_between(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        """It has listed the files before, and the delivery rewrites small ones."""
        if not harness.read_options:
            return
        decoupled = _decoupled(query)
        for batch_id in range(2):
            decoupled.run(store, decoupled.batch(batch_id), ids(2 * batch_id), ids(2 * batch_id + 1))
        deliver(store)
        before = _opened(harness)
        files = list(before.files())
        for batch_id in range(2, 4):
            decoupled.run(store, decoupled.batch(batch_id), ids(2 * batch_id), ids(2 * batch_id + 1))
        deliver(store)

        assert list(before.files()) == files
        assert _ids(before) in (list(range(4)), list(range(8)))
        assert _ids(_opened(harness)) == list(range(8))

    def test_a_stream_of_the_table_has_each_row_once(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        """Whatever crashed, and however deliveries merged batches. Only for tables that
        `spark.readStream` reads.
        """
        if not harness.read_options or _format(harness) not in STREAM_OPTIONS:
            return
        query.run(store, query.batch(0), ids(0))
        stream = TableStream(_format(harness), harness.read_options)
        assert stream.all_ids() == [0]
        found = []
        for batch_id, point in enumerate(("commit.start", "commit.landed"), 1):
            rows = ids(2 * batch_id), ids(2 * batch_id + 1)
            with crash_at(point):
                query.run(store, query.batch(batch_id), *rows)
            with suppress(RetryableError):
                found += stream.all_ids()
            query.run(store, query.batch(batch_id), *rows, run_id="r2")
        stream.start()
        found += stream.all_ids()
        assert sorted(found) == [2, 3, 4, 5]

        decoupled, found = _decoupled(query), []
        for batch_id in range(3, 7):
            decoupled.run(store, decoupled.batch(batch_id), ids(2 * batch_id), ids(2 * batch_id + 1))
            if batch_id % 2 == 0:
                deliver(store)
                found += stream.all_ids()
        assert sorted(found) == list(range(6, 14))
        assert _ids(_opened(harness)) == [0, *range(2, 14)]


def _decoupled(query: Query) -> Query:
    compaction = {"compactWith": "local"} if isinstance(query.target(), Compactable) else {}
    return query.with_options(delivery="decoupled", **compaction)


def _format(harness: DestinationHarness) -> str:
    return f"penstock.{harness.destination.kind}"


def _opened(harness: DestinationHarness) -> TableScan:
    return open_table(_format(harness), harness.read_options)


def _ids(table: TableScan) -> list[int]:
    return sorted(table.to_reader().read_all().column("id").to_pylist())
