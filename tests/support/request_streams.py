"""A decoupled stream to a service, whose rows wait in a row log on disk or on S3."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from servers.http_rows import HttpRows
from tests.support.backlogs import start_cli, wait_until
from tests.support.cli import Ended

from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.datasource.destinations import DestinationType
from penstock.datasource.plug_ins import BUILT_IN, load
from penstock.testing.conformance import Query
from penstock.testing.conformance.query import ids

ROWS = 120
"""In three batches of two partitions."""


@dataclass
class RequestStream:
    """A decoupled stream, its store, and what `penstock deliver` needs to send its rows."""

    store: SqlManifestStore
    store_url: str
    query: Query
    arguments: Sequence[str] = ()

    def prepare(self, batches: int = 3, parts: int = 2, rows: int = ROWS // 6) -> None:
        for batch_id in range(batches):
            first = batch_id * parts * rows
            tables = [ids(*range(first + part * rows, first + (part + 1) * rows)) for part in range(parts)]
            self.query.run(self.store, self.query.batch(batch_id), *tables)

    def deliver(self, *arguments: str) -> Ended:
        return Ended("deliver", "--once", "--store", self.store_url, *self.arguments, *arguments)

    def deliver_until(self, is_time: Callable[[], bool]) -> None:
        """Start a delivery process, and kill it when it is time."""
        process = start_cli("deliver", "--store", self.store_url, *self.arguments)
        try:
            wait_until(is_time)
        finally:
            process.kill()
            process.communicate()

    @property
    def left(self) -> int:
        return len(self.store.pending(self.query.stream))

    def row_log(self) -> list[Path]:
        return list(Path(self.query.sink().options.given["rowLog"]).rglob("*.arrow"))


@dataclass
class Service:
    """See `Place`."""

    kind: str
    options: dict[str, str]

    @property
    def destination(self) -> DestinationType:
        return load(BUILT_IN[self.kind])


@contextmanager
def request_stream(
    folder: Path, service: Service, secrets: Mapping[str, str], store_url: str | None = None, **options: str
) -> Iterator[RequestStream]:
    """Open the store, and the stream with these options.

    Args:
        secrets: options that the delivery process is given again
        store_url: None: SQLite in the folder
    """
    given = {"delivery": "decoupled", "checkpointLocation": str(folder / "checkpoint"), **service.options}
    place = Service(service.kind, {**given, **options})
    arguments = [part for one in secrets.items() for part in ("--storage", "=".join(one))]
    url = store_url or f"sqlite:///{folder}/store.db"
    with open_store(url) as store:
        yield RequestStream(store, url, Query(place, options=dict(secrets), store=store), arguments)


@dataclass
class Stream(RequestStream):
    """One to an HTTP service."""

    server: HttpRows = field(kw_only=True)


@contextmanager
def http_stream(
    folder: Path, server: HttpRows, options: Mapping[str, str], store_url: str | None = None
) -> Iterator[Stream]:
    """The stream with these options to the empty service."""
    server.set()
    server.clear()
    service = Service("http", {"url": server.url, "deliveryTries": "1"})
    with request_stream(folder, service, {}, store_url, **options) as opened:
        yield Stream(opened.store, opened.store_url, opened.query, server=server)
