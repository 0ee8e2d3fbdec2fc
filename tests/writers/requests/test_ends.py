"""Close and abort: nothing is in flight afterwards, and nothing is sent any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from tests.support.request_service import (
    LATENCY_S,
    NEVER,
    Observed,
    ScriptedService,
    entries,
    now,
    sender,
)
from tests.support.virtual_loop import in_virtual_time

from penstock.committers.errors import AccessRefusedError, SchemaMismatchError
from penstock.writers.requests.results import DELIVERED, Fatal, Result, Retry
from penstock.writers.requests.sender import RequestSender

HOURS_S = 3600 * 24


@in_virtual_time
async def test_close_flushes_and_closes_the_client_once() -> None:
    service = ScriptedService()
    writer = sender(service)
    await writer.write(entries(5))
    await writer.close()
    assert service.in_flight == 0
    assert writer.acknowledged_up_to == 4
    await writer.abort()
    assert service.closed == 1


@in_virtual_time
async def test_abort_cancels_what_is_in_flight_and_forgets_what_is_buffered() -> None:
    service = ScriptedService(NEVER, Retry("503"))
    observed = Observed()
    writer = sender(service, observer=observed)
    await writer.write(entries(12))
    await asyncio.sleep(LATENCY_S * 1.1)
    sent = len(service.requests)
    await writer.abort()
    assert (service.in_flight, service.closed) == (0, 1)
    assert (writer.counters.in_flight, writer.counters.in_flight_requests) == (0, 0)
    assert (writer.counters.buffered, writer.counters.buffered_bytes) == (0, 0)
    await asyncio.sleep(HOURS_S)
    assert len(service.requests) == sent
    assert 0 not in observed.positions


@in_virtual_time
async def test_abort_waits_for_a_client_that_takes_time_to_stop() -> None:
    class Slow(ScriptedService):
        async def submit(self, entries: object) -> None:  # type: ignore[override]
            self.in_flight += 1
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(3)
                self.in_flight -= 1

    service = Slow()
    writer = sender(service)
    await writer.write(entries(3))
    await asyncio.sleep(1)
    await writer.abort()
    assert service.in_flight == 0
    assert now() == 4


@in_virtual_time
async def test_a_result_that_comes_while_aborting_is_not_acknowledged() -> None:
    class LastMoment(ScriptedService):
        async def submit(self, entries: Sequence[Any]) -> Sequence[Result]:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return [DELIVERED] * len(entries)

    observed = Observed()
    writer = sender(LastMoment(), observer=observed)
    await writer.write(entries(3))
    await asyncio.sleep(1)
    await writer.abort()
    assert observed.done == []


CALLS: dict[str, Callable[[RequestSender[int]], Awaitable[None]]] = {
    "write": lambda writer: writer.write(entries(1, start=99)),
    "flush": lambda writer: writer.flush(),
    "close": lambda writer: writer.close(),
}


@pytest.mark.parametrize("call", CALLS)
@in_virtual_time
async def test_each_call_after_an_error_raises_it(call: str) -> None:
    service = ScriptedService(Fatal("401", "Check the token.", AccessRefusedError))
    writer = sender(service)
    await writer.write(entries(12))
    await asyncio.sleep(HOURS_S)
    for _ in range(2):
        with pytest.raises(AccessRefusedError, match=r"Check the token\. A delivery process .* options file"):
            await CALLS[call](writer)
    await writer.abort()
    assert len(service.requests) == 2  # both were in flight before the error


@pytest.mark.parametrize("waiting", ["write", "flush"])
@in_virtual_time
async def test_a_call_that_waits_raises_the_error(waiting: str) -> None:
    service = ScriptedService(NEVER, Fatal("401", "", AccessRefusedError))
    writer = sender(service, buffered_entries_max=3, request_timeout_s=HOURS_S)
    await writer.write(entries(6))
    with pytest.raises(AccessRefusedError):
        await (writer.write(entries(99, start=6)) if waiting == "write" else writer.flush())
    assert now() == LATENCY_S
    await writer.abort()


@in_virtual_time
async def test_after_an_error_stop_counts_the_responses_of_what_is_in_flight() -> None:
    """The observer, which may have raised the error, is not called."""
    service = ScriptedService(
        DELIVERED, Fatal("400", "no", SchemaMismatchError), latency_s=(0.5, 0.1).__getitem__
    )
    observed = Observed()
    writer = sender(service, observer=observed)
    with suppress(SchemaMismatchError):
        await writer.write(entries(12))
        await writer.flush()
    await writer.stop(10)
    assert (len(service.requests), writer.acknowledged_up_to, observed.done) == (2, 2, [])
    await writer.abort()


@in_virtual_time
async def test_a_flush_ends_with_the_error_of_a_concurrent_write() -> None:
    writer = sender(ScriptedService(NEVER), request_timeout_s=HOURS_S, record_bytes_max=100)
    await writer.write(entries(3))
    flush = asyncio.ensure_future(writer.flush())
    await asyncio.sleep(1)
    with pytest.raises(SchemaMismatchError):
        await writer.write(entries(1, start=3, size_bytes=101))
    with pytest.raises(SchemaMismatchError):
        await flush
    assert now() == 1
    await writer.abort()


@pytest.mark.parametrize("call", CALLS)
@in_virtual_time
async def test_a_closed_writer_takes_nothing(call: str) -> None:
    writer = sender(ScriptedService())
    await writer.close()
    with pytest.raises(RuntimeError, match="closed"):
        await CALLS[call](writer)


@pytest.mark.parametrize("ending", ["close", "abort"])
@in_virtual_time
async def test_a_client_that_cannot_close_does_not_change_the_result(ending: str) -> None:
    class Broken(ScriptedService):
        async def close(self) -> None:
            if ending == "close":
                raise OSError("no connection")
            await asyncio.Event().wait()

    writer = sender(Broken())
    await writer.write(entries(3))
    await (writer.close() if ending == "close" else writer.abort())
