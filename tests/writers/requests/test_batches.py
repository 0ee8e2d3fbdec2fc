"""When requests are sent, with how many entries, and when the caller waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.request_service import (
    LATENCY_S,
    NEVER,
    Observed,
    ScriptedService,
    entries,
    entry,
    now,
    sender,
)
from tests.support.virtual_loop import in_virtual_time

from penstock.committers.errors import ConfigurationError, SchemaMismatchError
from penstock.writers.requests.limits import Limits
from penstock.writers.requests.results import DeadLetter, Delivered


@in_virtual_time
async def test_a_full_request_is_sent_at_once_and_the_rest_after_its_time_in_the_buffer() -> None:
    service = ScriptedService()
    writer = sender(service, buffer_time_max_s=2.0)
    await writer.write(entries(4))
    await asyncio.sleep(5)
    assert service.positions == [(0, 1, 2), (3,)]
    assert service.times == [0, 2]


@in_virtual_time
async def test_the_time_in_the_buffer_is_that_of_the_oldest_entry() -> None:
    service = ScriptedService()
    writer = sender(service, buffer_time_max_s=2.0)
    await writer.write(entries(1))
    await asyncio.sleep(1.5)
    await writer.write(entries(1, start=1))
    await asyncio.sleep(5)
    assert service.positions == [(0, 1)]
    assert service.times == [2]


@in_virtual_time
async def test_a_request_ends_before_it_has_too_many_bytes() -> None:
    service = ScriptedService()
    writer = sender(service, batch_bytes_max=100, record_bytes_max=100)
    await writer.write([entry(0, size_bytes=60), entry(1, size_bytes=40), entry(2, size_bytes=1)])
    await writer.write([entry(3, size_bytes=100)])
    await writer.flush()
    assert service.positions == [(0, 1), (2,), (3,)]


@in_virtual_time
async def test_a_request_that_is_full_by_its_bytes_is_sent_at_once() -> None:
    service = ScriptedService()
    writer = sender(service, batch_bytes_max=100, record_bytes_max=100)
    await writer.write([entry(0, size_bytes=60), entry(1, size_bytes=60)])
    assert len(service.requests) == 0  # it starts with the loop's next round
    await asyncio.sleep(0)
    assert service.positions == [(0,)]


@in_virtual_time
async def test_no_more_requests_are_in_flight_than_allowed() -> None:
    service = ScriptedService()
    writer = sender(service, in_flight_requests_max=2)
    await writer.write(entries(12))
    await writer.flush()
    assert service.in_flight_max == 2
    assert service.times == [0, 0, LATENCY_S, LATENCY_S]


@pytest.mark.parametrize(
    "bounds", [{"buffered_entries_max": 6}, {"buffered_bytes_max": 60, "batch_bytes_max": 30}]
)
@in_virtual_time
async def test_write_waits_while_the_buffer_is_full(bounds: dict[str, Any]) -> None:
    """Two requests of three entries are in flight, and six entries wait."""
    service = ScriptedService()
    writer = sender(service, record_bytes_max=10, **bounds)
    await writer.write(entries(12))
    assert now() == 0
    assert (writer.counters.buffered, writer.counters.in_flight) == (6, 6)
    await writer.write(entries(1, start=12))
    assert now() == LATENCY_S
    assert writer.counters.waited_s == pytest.approx(LATENCY_S)


@in_virtual_time
async def test_a_caller_who_waits_for_room_fills_the_next_request() -> None:
    """Four entries fit into the buffer: a request of three is sent, and the caller adds to the fourth."""
    service = ScriptedService()
    writer = sender(service, buffered_entries_max=4)
    await writer.write(entries(30))
    await writer.flush()
    assert {len(positions) for positions in service.positions} == {3}


@in_virtual_time
async def test_an_entry_that_is_too_large_for_the_room_left_waits() -> None:
    service = ScriptedService()
    writer = sender(
        service, buffered_bytes_max=100, batch_bytes_max=100, record_bytes_max=100, buffer_time_max_s=60.0
    )
    await writer.write([entry(0, size_bytes=40)])
    await writer.write([entry(1, size_bytes=70)])
    await writer.flush()
    assert service.positions == [(0,), (1,)]
    assert now() < 1


@in_virtual_time
async def test_flush_sends_what_is_buffered_and_returns_when_nothing_is_in_flight() -> None:
    service = ScriptedService()
    writer = sender(service, buffer_time_max_s=60.0)
    await writer.write(entries(5))
    await writer.flush()
    assert service.positions == [(0, 1, 2), (3, 4)]
    assert now() == LATENCY_S
    assert (service.in_flight, writer.counters.in_flight, writer.counters.buffered) == (0, 0, 0)
    await writer.flush()
    assert now() == LATENCY_S


@in_virtual_time
async def test_entries_after_a_flush_wait_for_a_full_request_again() -> None:
    service = ScriptedService()
    writer = sender(service, buffer_time_max_s=60.0)
    await writer.write(entries(1))
    await writer.flush()
    await writer.write(entries(1, start=1))
    await asyncio.sleep(30)
    assert service.positions == [(0,)]


@in_virtual_time
async def test_an_oversized_entry_is_a_dead_letter_and_never_sent() -> None:
    service = ScriptedService()
    observed = Observed()
    writer = sender(service, record_bytes_max=100, on_oversized="dead_letter", observer=observed)
    await writer.write([entry(0), entry(1, size_bytes=101), entry(2, size_bytes=100)])
    await writer.flush()
    assert service.positions == [(0, 2)]
    assert writer.acknowledged_up_to == 2
    assert writer.counters.dead_letters == 1
    (position, result), *others = observed.done
    assert position == 1
    assert isinstance(result, DeadLetter)
    assert result.code == "oversized"
    assert "Entry id-1 has 101 bytes; maxRecordBytes allows 100." in result.message
    assert [type(other) for _, other in others] == [Delivered, Delivered]


@in_virtual_time
async def test_an_oversized_entry_stops_the_writer_if_configured() -> None:
    service = ScriptedService()
    writer = sender(service, record_bytes_max=100, on_oversized="fail")
    with pytest.raises(SchemaMismatchError, match="id-1 has 101 bytes"):
        await writer.write([entry(0), entry(1, size_bytes=101), entry(2)])
    with pytest.raises(SchemaMismatchError, match="id-1 has 101 bytes"):
        await writer.flush()
    await writer.abort()
    assert writer.acknowledged_up_to is None
    assert service.requests == []


@in_virtual_time
async def test_positions_must_ascend() -> None:
    writer = sender(ScriptedService(NEVER))
    await writer.write([entry(7)])
    with pytest.raises(ValueError, match="Position 7 follows position 7"):
        await writer.write([entry(7)])


def test_all_problems_with_limits_are_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as raised:
        Limits(
            batch_entries_max=0,
            batch_bytes_max=10,
            record_bytes_max=11,
            request_timeout_s=float("nan"),
            on_oversized="drop",  # type: ignore[arg-type]
        )
    assert str(raised.value).splitlines()[1:] == [
        "  - batch_entries_max must be a positive number, not 0.",
        "  - request_timeout_s must be a positive number, not nan.",
        "  - batch_bytes_max (10) must be at least record_bytes_max (11).",
        "  - on_oversized must be 'fail' or 'dead_letter', not 'drop'.",
    ]
