"""Entries of one key arrive in order; other keys go on."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.request_service import (
    LATENCY_S,
    NEVER,
    Observed,
    ScriptedService,
    entries,
    keyed,
    now,
    sender,
)
from tests.support.virtual_loop import in_virtual_time

from penstock.writers.requests.results import DELIVERED, DeadLetter, Retry
from penstock.writers.requests.retry_budget import RetryBudget

BUSY = Retry("503")


@in_virtual_time
async def test_a_key_is_in_flight_once_and_other_keys_go_on() -> None:
    service = ScriptedService()
    writer = sender(service, order_by_key=True)
    await writer.write(keyed("aabac"))
    await writer.flush()
    assert service.positions == [(0, 2, 4), (1,), (3,)]
    assert service.times == [0, LATENCY_S, 2 * LATENCY_S]


@in_virtual_time
async def test_entries_after_a_failed_one_of_their_key_wait_for_it() -> None:
    service = ScriptedService([BUSY, DELIVERED], latency_s=LATENCY_S)
    observed = Observed()
    writer = sender(service, order_by_key=True, observer=observed, retries=RetryBudget(backoff_first_s=20))
    await writer.write(keyed("aabb"))
    await writer.flush()
    assert now() == pytest.approx(10 + 3 * LATENCY_S)
    assert service.positions == [(0, 2), (3,), (0,), (1,)]
    assert observed.positions == [2, 3, 0, 1]


@in_virtual_time
async def test_the_next_entry_of_a_key_is_sent_after_a_dead_letter() -> None:
    service = ScriptedService(DeadLetter("400", "Bad."))
    writer = sender(service, order_by_key=True)
    await writer.write(keyed("aa"))
    await writer.flush()
    assert service.positions == [(0,), (1,)]


@in_virtual_time
async def test_entries_without_a_key_have_no_order() -> None:
    service = ScriptedService()
    writer = sender(service, order_by_key=True)
    await writer.write(entries(6))
    await writer.flush()
    assert now() == LATENCY_S


@in_virtual_time
async def test_keys_mean_nothing_without_the_option() -> None:
    service = ScriptedService()
    writer = sender(service)
    await writer.write(keyed("aaa"))
    await writer.flush()
    assert service.positions == [(0, 1, 2)]


@in_virtual_time
async def test_a_buffer_full_of_one_key_is_sent_without_waiting_for_more() -> None:
    """The caller waits for room, and only one entry can be sent at a time: none of them waits for its time in
    the buffer.
    """
    service = ScriptedService()
    writer = sender(service, order_by_key=True, buffered_entries_max=3, buffer_time_max_s=60.0)
    await writer.write(keyed("aaaaa"))
    assert now() < 1


@in_virtual_time
async def test_a_key_is_forgotten_when_its_entries_are_done() -> None:
    writer = sender(ScriptedService(), order_by_key=True)
    await writer.write(keyed("abcabc"))
    await writer.flush()
    assert writer._buffer._behind == {}


@in_virtual_time
async def test_an_old_entry_of_a_slow_key_takes_no_place_of_older_ones() -> None:
    """Entry 4 becomes free when entry 0 is done; 2 and 3 have waited longer."""
    service = ScriptedService(DELIVERED, NEVER)
    writer = sender(service, order_by_key=True, batch_entries_max=2, in_flight_requests_max=1)
    await writer.write(keyed("abcda"))
    await asyncio.sleep(LATENCY_S * 1.5)
    assert service.positions == [(0, 1), (2, 3)]
    await writer.abort()


@in_virtual_time
async def test_in_order_no_entry_overtakes_one_that_waits_for_its_next_attempt() -> None:
    """Also not one of the same request that waits for less time."""
    service = ScriptedService([DELIVERED, BUSY], BUSY, DELIVERED, latency_s=LATENCY_S)
    writer = sender(service, in_order=True, batch_entries_max=2, retries=RetryBudget(backoff_first_s=5))
    await writer.write(keyed("abcdef"))
    await writer.flush()
    assert service.positions == [(0, 1), (1, 2), (1, 2), (3, 4), (5,)]
    assert service.times == sorted(set(service.times)), "one at a time"
