"""A decoupled stream to an HTTP service, whose rows wait in a row log on disk or on S3."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from servers.http_rows import HttpRows
from tests.support.cli import Ended

from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.datasource.http.sink import DESTINATION
from penstock.datasource.http.source import HttpDataSource
from penstock.testing.conformance import Query
from penstock.testing.conformance.query import ids

ROWS = 120
"""In three batches of two partitions."""


@dataclass
class Stream:
    """A decoupled stream, its store, and the service that receives its rows."""

    server: HttpRows
    store: SqlManifestStore
    store_url: str
    query: Query

    def prepare(self, batches: int = 3, parts: int = 2, rows: int = ROWS // 6) -> None:
        for batch_id in range(batches):
            first = batch_id * parts * rows
            tables = [ids(*range(first + part * rows, first + (part + 1) * rows)) for part in range(parts)]
            self.query.run(self.store, self.query.batch(batch_id), *tables)

    def deliver(self, *arguments: str) -> Ended:
        return Ended("deliver", "--once", "--store", self.store_url, *arguments)

    @property
    def left(self) -> int:
        return len(self.store.pending(self.query.stream))

    def row_log(self) -> list[Path]:
        return list(Path(self.query.sink().options.given["rowLog"]).rglob("*.arrow"))


@dataclass
class Endpoint:
    """See `Place`."""

    options: dict[str, str]
    data_source = HttpDataSource
    destination = DESTINATION


@contextmanager
def http_stream(folder: Path, server: HttpRows, options: Mapping[str, str]) -> Iterator[Stream]:
    """Open a store in the folder, and the stream with these options to the empty service."""
    server.set()
    server.clear()
    given = {
        "url": server.url,
        "delivery": "decoupled",
        "deliveryTries": "1",
        "checkpointLocation": str(folder / "checkpoint"),
        **options,
    }
    url = f"sqlite:///{folder}/store.db"
    with open_store(url) as store:
        yield Stream(server, store, url, Query(Endpoint(given), store=store))
