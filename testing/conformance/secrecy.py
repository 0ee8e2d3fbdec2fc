"""Claims: secrets are not shown, and everything that Spark pickles can be pickled."""

from __future__ import annotations

import logging
import pickle
import socket
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ...committers.errors import ConfigurationError, PenstockError
from ...committers.store.sql import SqlManifestStore
from .claims import Claims, check_rows
from .echoes import listening
from .harness import SECRET, DestinationHarness
from .query import Query, ids, shipped


class SecrecyClaims(Claims):
    @pytest.fixture
    def secretive(self, harness: DestinationHarness, store: SqlManifestStore) -> Query:
        return Query(harness, destination_options=harness.secret_options or None, store=store)

    def test_one_destination_has_one_address(self, query: Query, harness: DestinationHarness) -> None:
        sink = query.sink()
        assert sink.table_uri == shipped(sink).table_uri == query.sink().table_uri
        assert sink == shipped(sink)
        assert sink.kind == harness.destination.kind

    def test_no_secret_is_in_the_store_in_logs_or_in_a_repr(
        self,
        secretive: Query,
        store: SqlManifestStore,
        harness: DestinationHarness,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        with caplog.at_level(logging.DEBUG):
            plan = secretive.plan(store, secretive.batch(0))
            messages = secretive.write(plan, [ids(1)])
            secretive.commit(store, messages)
        sink, target = secretive.sink(), secretive.target()

        shown = [repr(sink), repr(target), repr(plan), sink.table_uri, repr(sink.options.given), caplog.text]
        shown += [repr(secretive.status(store)), repr(store.record(secretive.stream, 0))]
        assert not [text for text in shown if SECRET in text]
        assert SECRET.encode() not in pickle.dumps(messages)
        for file in tmp_path.glob("store.db*"):
            assert SECRET.encode() not in file.read_bytes()
        check_rows(harness, 1)

    def test_tasks_get_the_secrets_that_they_need_and_no_others(
        self, secretive: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        plan = secretive.plan(store, secretive.batch(0))
        shows = SECRET.encode() in pickle.dumps(plan)
        assert shows == (harness.promises.shows_secrets_to_tasks and bool(harness.secret_options))

    @pytest.mark.parametrize("delivery", ["coupled", "decoupled"])
    def test_an_unreachable_server_is_reported_without_secrets(
        self,
        store: SqlManifestStore,
        harness: DestinationHarness,
        caplog: pytest.LogCaptureFixture,
        delivery: str,
    ) -> None:
        """Decoupled, rows that go into a row log are written, and their delivery fails."""
        with _closing_connections() as (harness.unreachable_port, connections):
            options = harness.unreachable_options
            if not options:
                return
            query = Query(harness, options={"delivery": delivery}, destination_options=options, store=store)

            def write() -> None:
                manifest = query.prepare(store, query.batch(0), ids(1))
                connections.clear()  # of a check before any row is written
                query.target().commit(manifest)

            with caplog.at_level(logging.DEBUG), pytest.raises(PenstockError) as failure:
                write()

        assert connections, "no connection to `unreachable_port` was opened"
        assert SECRET not in "".join(traceback.format_exception(failure.value)) + caplog.text

    def test_an_unknown_option_is_refused_without_secrets(self, harness: DestinationHarness) -> None:
        query = Query(harness, "q1", {"chekpoint": "x"}, harness.secret_options or None)
        with pytest.raises(ConfigurationError, match="chekpoint is not an option") as failure:
            query.sink()

        assert SECRET not in "".join(traceback.format_exception(failure.value))


@contextmanager
def _closing_connections() -> Iterator[tuple[int, list[object]]]:
    """Listen on a port, and close each connection. Return the port, and the connections."""
    connections: list[object] = []

    def close(connection: socket.socket) -> None:
        with connection:
            connections.append(connection)

    with listening(close) as port:
        yield port, connections
