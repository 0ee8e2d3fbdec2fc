"""Queries into several destinations, and their store: two tables and two HTTP services, or a Delta table,
OpenSearch and Kinesis.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from servers.aws import REGION
from servers.http_rows import HttpRows
from tests.support.aws import AwsPlace
from tests.support.cli import Ended
from tests.support.lakes import LAKES, LakeTable
from tests.support.search import SearchPlace

from penstock.committers.contract import ManifestState, StreamKey
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.datasource.http.sink import DESTINATION
from penstock.testing.conformance import Query

NAMES = ("lake", "ice", "search", "events")


@dataclass
class FanoutPlace:
    """See `Place`. Its options are those of a query."""

    options: dict[str, str]
    destination = replace(DESTINATION, data_source="penstock.datasource.fanout.source:FanoutDataSource")


@dataclass
class BaseFanout(ABC):
    folder: Path
    store: SqlManifestStore
    store_url: str

    def __post_init__(self) -> None:
        self.names = tuple(self.targets())

    @cached_property
    def lake(self) -> LakeTable:
        return LAKES["delta"](self.folder / "delta")

    @abstractmethod
    def targets(self) -> dict[str, dict[str, str]]:
        """Return the format of each target, under the name `""`, and its options."""

    def options(self, **more: str) -> dict[str, str]:
        targets = self.targets()
        given = {
            f"target.{name}.{key}".rstrip("."): value
            for name in self.names
            for key, value in targets[name].items()
        }
        return {
            **given,
            "checkpointLocation": str(self.folder / "checkpoint"),
            "deliverAfterSeconds": "1",
            **more,
        }

    def query(self, *names: str, **more: str) -> Query:
        """The query as it is started with these targets; without names, with all."""
        self.names = names or tuple(self.targets())
        return Query(FanoutPlace(self.options(**more)))

    def stream(self, name: str) -> StreamKey:
        targets = self.query(*self.names).with_targets().targets
        return StreamKey("q1", targets[name].table_uri)

    def state(self, name: str, batch_id: int) -> ManifestState | None:
        record = self.store.record(self.stream(name), batch_id)
        return None if record is None else record.state

    def states(self, batch_id: int, names: Iterable[str] = NAMES) -> list[ManifestState | None]:
        return [self.state(name, batch_id) for name in names]

    def deliver(self, name: str | None = None) -> Ended:
        """`penstock deliver --once`, of one target or all."""
        chosen = () if name is None else (str(self.stream(name)),)
        return Ended("deliver", "--once", "--store", self.store_url, *chosen)

    def row_log(self) -> list[str]:
        log = self.folder / "checkpoint" / "row-log"
        return sorted(path.name for path in log.rglob("*.arrow"))

    def ids(self, name: str) -> list[int]:
        """The ids that readers of the target see."""
        where: Any = getattr(self, name)
        return sorted(where.ids())

    def files(self) -> set[str]:
        """Data files of both tables, named by a version or not."""
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*.parquet")}


@dataclass
class Fanout(BaseFanout):
    """Into two tables and two HTTP services."""

    search: HttpRows
    events: HttpRows

    @cached_property
    def ice(self) -> LakeTable:
        return LAKES["iceberg"](self.folder / "iceberg")

    def targets(self) -> dict[str, dict[str, str]]:
        return {
            "lake": {"": "penstock.delta", **self.lake.options},
            "ice": {"": "penstock.iceberg", **self.ice.options},
            "search": {"": "penstock.http", "url": self.search.url},
            "events": {"": "penstock.http", "url": self.events.url},
        }


@dataclass
class ServiceFanout(BaseFanout):
    """Into a Delta table, OpenSearch and Kinesis."""

    search: SearchPlace
    events: AwsPlace

    def targets(self) -> dict[str, dict[str, str]]:
        """Rows have ids of their own. Credentials are in the environment."""
        return {
            "lake": {"": "penstock.delta", **self.lake.options},
            "search": {"": "penstock.opensearch", "idColumn": "id", **self.search.options()},
            "events": {
                "": "penstock.kinesis",
                "stream": self.events.name,
                "region": REGION,
                "endpointUrl": self.events.url,
            },
        }


@contextmanager
def http_fanout(
    folder: Path, services: tuple[HttpRows, HttpRows], store: str = "store.db", deduplicate: bool = False
) -> Iterator[Fanout]:
    """Into two tables and two empty services."""
    for service in services:
        service.set(deduplicate=deduplicate)
        service.clear()
    url = f"sqlite:///{folder}/{store}"
    with open_store(url) as opened:
        yield Fanout(folder, opened, url, *services)
