"""Places of services, as tests that are the same for all of them send to them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.committers.requests.contract import RowPlace
from penstock.datasource.plug_ins import BUILT_IN, load
from penstock.datasource.requests.service import RequestService
from penstock.datasource.requests.sink import RequestSink
from penstock.writers.requests.results import Result
from penstock.writers.requests.retry_budget import RetryBudget

PLACE = RowPlace("q1", 0, 0, 0, 0)


def service_of(kind: str) -> RequestService:
    return load(BUILT_IN[kind].replace("DESTINATION", "SERVICE"))


def send_rows(requests: Any, rows: pa.RecordBatch, place: RowPlace = PLACE) -> Any:
    """Send the rows as a task, and return the counters of its writer."""
    writer = requests.open_writer()
    try:
        writer.write(requests.entries(rows, place))
        writer.flush()
    finally:
        writer.abort()
    return writer.counters


def submit_once(requests: Any, entries: Sequence[Any]) -> Sequence[Result]:
    """Send one request, without retries, and return the results of its entries."""

    async def submit() -> Any:
        client = requests.new_client()
        try:
            return await client.submit(entries)
        finally:
            await client.close()

    results = asyncio.run(submit())
    assert isinstance(results, Sequence)
    return results


def result_of_failure(requests: Any, rows: pa.RecordBatch) -> Result:
    """Send one request, without retries, and return what its exception means."""

    async def submit() -> Any:
        client = requests.new_client()
        try:
            await client.submit(requests.entries(rows, PLACE))
        except Exception as error:  # noqa: BLE001  whatever the library raises
            return client.classify(error)
        finally:
            await client.close()

    return asyncio.run(submit())


def with_quick_retries(requests: Any) -> Any:
    """The same requests, whose retries begin after 10 ms."""
    retries = RetryBudget(total_s=20, backoff_first_s=0.01, backoff_max_s=0.05)
    return replace(requests, settings=replace(requests.settings, retries=retries))


class ServicePlace(ABC):
    """A place that a query sends rows to."""

    kind: str

    @abstractmethod
    def options(self, **more: str) -> dict[str, str]: ...

    @abstractmethod
    def ids(self) -> list[int]: ...

    def sink(self, **more: str) -> RequestSink:
        return service_of(self.kind).sink(self.options(**more))

    def write(self, rows: pa.RecordBatch, **more: str) -> Any:
        """See `send_rows`."""
        return send_rows(self.sink(**more).requests, rows)


def rows_of(*row_ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(row_ids, pa.int64()), "text": [f"é-{one}" for one in row_ids]})
