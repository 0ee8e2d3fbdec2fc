"""Claims: the rows of a query with `routeBy` reach the destination that they name, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from ...committers import crash_points
from ...committers.contract import Batch, ManifestState, StreamKey
from ...committers.store.sql import SqlManifestStore
from ...datasource.routing.opening import Routes
from ..faults import Lost, crash_at
from .claims import Claims, check_rows
from .deliveries import deliver
from .harness import DestinationHarness
from .query import Query

_NAMED_BY = ("path", "table", "dbtable", "stream", "queue", "index", "subject", "topic", "key", "url")
"""Options that name a destination, the first of them that a query has."""
_SEPARATORS = {"path": "/", "url": "/", "table": ".", "dbtable": "."}


class RouteClaims(Claims):
    """Half of the rows name the destination of the harness. Others name one that may not exist: then it is
    parked, which holds up nobody.
    """

    @pytest.fixture
    def routed(self, harness: DestinationHarness, store: SqlManifestStore, tmp_path: Path) -> Query:
        return routed_query(harness, store, tmp_path)

    def test_rows_go_to_the_destination_that_they_name(
        self, routed: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        """One pass over the rows of each task; a manifest for each destination, stored together."""
        routed = _soon_given_up(routed, harness)
        for number in range(3):
            _run(routed, store, harness, number)
        check_rows(harness)
        own = _deliver_own(routed, store, harness)

        check_rows(harness, *range(6))
        assert {record.state for record in store.history(own, 9)} == {ManifestState.COMMITTED}

    @pytest.mark.parametrize("point", ["prepare.start", "prepare.done"])
    def test_a_crash_of_the_driver_loses_and_doubles_no_routed_row(
        self, routed: Query, store: SqlManifestStore, harness: DestinationHarness, point: str
    ) -> None:
        routed = _soon_given_up(routed, harness)
        _run(routed, store, harness, 0)
        with crash_at(point):
            _run(routed, store, harness, 1)
        _run(routed, store, harness, 1, run_id="r2")
        _run(routed, store, harness, 2, run_id="r2")
        _deliver_own(routed, store, harness)

        check_rows(harness, *range(6))

    @pytest.mark.parametrize("point", ["commit.start", "commit.landed", "deliver.done"])
    def test_a_crash_of_a_delivery_loses_and_doubles_no_routed_row(
        self,
        routed: Query,
        store: SqlManifestStore,
        harness: DestinationHarness,
        point: str,
        tmp_path: Path,
    ) -> None:
        for number in range(2):
            _run(routed, store, harness, number, names=1)
        if point in (*crash_points.DELIVERY_POINTS, *harness.promises.crash_points):
            with crash_at(point):
                deliver(store)
        deliver(store)

        check_rows(harness, *range(4))
        assert not store.streams(is_pending=True)
        assert not list(tmp_path.glob("routes/**/*.arrow"))

    @pytest.mark.parametrize("lost", ["request", "response"])
    def test_a_delivery_of_routed_rows_whose_commit_was_lost_is_finished_by_the_next(
        self, routed: Query, store: SqlManifestStore, harness: DestinationHarness, lost: Lost
    ) -> None:
        for number in range(2):
            _run(routed, store, harness, number, names=1)
        with harness.losing(lost):
            deliver(store)
        deliver(store)

        check_rows(harness, *range(4))


def routed_query(harness: DestinationHarness, store: SqlManifestStore, folder: Path) -> Query:
    """Return a query whose rows name their destination in the column `route`.

    Args:
        folder: for the row log
    """
    option, template, _ = _template(harness)
    options = {**harness.options, option: template, "routeBy": "route", "rowLog": f"{folder}/routes"}
    return Query(harness, destination_options=options, store=store)


def _soon_given_up(query: Query, harness: DestinationHarness) -> Query:
    """Return the query with a short `retryFor`: the other destination that its rows name may be missing."""
    if any(option.name == "retryFor" for option in harness.destination.options):
        return query.with_options(retryFor="4s")
    return query


def _run(
    query: Query,
    store: SqlManifestStore,
    harness: DestinationHarness,
    number: int,
    *,
    run_id: str = "r1",
    names: int = 2,
) -> Batch:
    """Run a batch of two tasks, each with a row for the destination of the harness."""
    own = _template(harness)[2]
    names = 1 if harness.sees_all_names else names
    batch = query.batch(number)
    query.run(store, batch, *(_rows(number * 2 + task, own, names) for task in range(2)), run_id=run_id)
    return batch


def _rows(row_id: int, own: str, names: int) -> pa.Table:
    routes = [own, f"{own}2"][:names]
    ids = [row_id, 1000 + row_id][:names]
    return pa.table({"id": pa.array(ids, pa.int64()), "route": routes})


def _template(harness: DestinationHarness) -> tuple[str, str, str]:
    """Return the option that names the destination, its template, and the route to the harness' own."""
    option = next(name for name in _NAMED_BY if name in harness.options)
    value = harness.options[option]
    start = value.rfind(_SEPARATORS[option]) + 1 if option in _SEPARATORS else 0
    name = re.compile(r"(?<![\w{-])[\w-]+(?![\w-]*})").search(value, start)
    assert name is not None, value
    return option, f"{value[: name.start()]}{{route}}{value[name.end() :]}", name[0]


def _deliver_own(query: Query, store: SqlManifestStore, harness: DestinationHarness) -> StreamKey:
    """Deliver the rows for the harness' own destination, and return its stream.

    `deliver` ends with the first failure, and that of the other destination may come first.
    """
    routes = query.with_targets().routes
    assert isinstance(routes, Routes)
    table_uri = routes.sink_of((_template(harness)[2],)).table_uri
    (own,) = [one for one in store.streams_of(query.query_id) if one.table_uri == table_uri]
    for _ in range(5):
        deliver(store)
        if not store.pending(own):
            break
    return own
