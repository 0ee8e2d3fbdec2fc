"""The writer of synchronous callers: its thread, errors across it, and its end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.request_service import NEVER, Observed, ScriptedService, entries, sender
from tests.support.virtual_loop import VirtualClockLoop

from penstock.committers.errors import AccessRefusedError, RetryableError
from penstock.writers.requests.async_sink_writer import AsyncSinkWriter
from penstock.writers.requests.results import Fatal, Retry
from penstock.writers.requests.sender import RequestSender

PATIENCE_S = 5


@pytest.fixture(autouse=True)
def threads() -> Iterator[Callable[[], list[threading.Thread]]]:
    """Returns the threads of this test's writers. Killed writers of other tests have left theirs."""

    def running() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name == "penstock-requests" and one not in others]

    others: list[threading.Thread] = []
    others = running()
    yield running
    assert not running()


def writer_of(service: ScriptedService, **settings: Any) -> AsyncSinkWriter[int]:
    """Its clock is virtual: waits for a retry or a time-out take no time."""
    return AsyncSinkWriter(sender(service, **settings), VirtualClockLoop)


def test_entries_are_delivered_from_a_thread_without_a_loop() -> None:
    service = ScriptedService(Retry("503"), NEVER)
    observed = Observed()
    writer = writer_of(service, observer=observed)
    for start in range(0, 40, 10):
        writer.write(entries(10, start))
    writer.flush()
    assert writer.acknowledged_up_to == 39
    assert writer.counters.delivered == 40
    assert (service.in_flight, writer.counters.buffered) == (0, 0)
    writer.write(entries(1, start=40))
    writer.close()
    assert sorted(observed.positions) == list(range(41))
    assert service.closed == 1


def test_requests_progress_while_the_caller_does_something_else() -> None:
    arrived = threading.Event()

    class Watched(ScriptedService):
        async def submit(self, entries: Any) -> Any:
            arrived.set()
            return await super().submit(entries)

    writer = writer_of(Watched())
    writer.write(entries(1))
    assert arrived.wait(PATIENCE_S)
    writer.close()


def test_write_blocks_while_the_buffer_is_full() -> None:
    answers = threading.Event()

    class Slow(ScriptedService):
        async def submit(self, entries: Any) -> Any:
            while not answers.is_set():
                await asyncio.sleep(1)  # virtual
            return await super().submit(entries)

    writer = writer_of(Slow(), buffered_entries_max=3, request_timeout_s=float(10**9))
    writer.write(entries(9))
    blocked = threading.Thread(target=writer.write, args=(entries(1, start=9),))
    blocked.start()
    blocked.join(0.05)
    assert blocked.is_alive()
    answers.set()
    blocked.join(PATIENCE_S)
    assert not blocked.is_alive()
    writer.close()


@pytest.mark.parametrize("call", ["write", "flush", "close"])
def test_an_error_in_the_loop_is_raised_by_the_next_call(call: str) -> None:
    service = ScriptedService(Fatal("401", "Check the token.", AccessRefusedError))
    writer = writer_of(service)
    writer.write(entries(3))
    while writer.counters.in_flight:
        time.sleep(0.001)  # until the response is there
    with pytest.raises(AccessRefusedError, match="Check the token"):
        writer.write(entries(1, start=3)) if call == "write" else getattr(writer, call)()
    writer.abort()
    assert service.closed == 1


def test_abort_leaves_nothing_in_flight() -> None:
    service = ScriptedService(*[NEVER] * 9)
    writer = writer_of(service, request_timeout_s=float(10**9))
    writer.write(entries(12))
    writer.abort()
    writer.abort()
    writer.close()
    assert (service.in_flight, service.cancelled, service.closed) == (0, 2, 1)


def test_a_task_without_rows_starts_no_thread(threads: Callable[[], list[threading.Thread]]) -> None:
    service = ScriptedService()
    writer = writer_of(service)
    writer.write([])
    writer.flush()
    assert not threads()
    writer.close()
    assert not threads()


@pytest.mark.parametrize("ending", ["close", "abort"])
def test_a_closed_writer_takes_nothing(ending: str) -> None:
    writer = writer_of(ScriptedService())
    writer.write(entries(1))
    getattr(writer, ending)()
    with pytest.raises(RuntimeError, match="closed"):
        writer.write(entries(1, start=1))


def test_a_caller_does_not_hang_when_the_loop_ends() -> None:
    class Ending(ScriptedService):
        async def submit(self, entries: Any) -> Any:
            asyncio.get_running_loop().stop()
            await asyncio.Event().wait()

    writer = writer_of(Ending())
    writer.write(entries(3))
    with pytest.raises(RetryableError, match="has ended"):
        writer.flush()
    writer.abort()


def test_the_same_core_runs_in_a_loop_of_the_caller(threads: Callable[[], list[threading.Thread]]) -> None:
    async def main() -> int | None:
        service = ScriptedService()
        core: RequestSender[int] = sender(service)
        await core.write(entries(3))
        await core.close()
        return core.acknowledged_up_to

    assert asyncio.run(main()) == 2
    assert not threads()
