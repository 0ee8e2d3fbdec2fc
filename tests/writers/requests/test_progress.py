"""What a delivery process records: acknowledged entries, the prefix that is done, counters."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.request_service import (
    LATENCY_S,
    NEVER,
    Observed,
    ScriptedService,
    entries,
    entry,
    sender,
)
from tests.support.virtual_loop import in_virtual_time, run_virtually

from penstock.committers.errors import PenstockError
from penstock.committers.requests.contract import Counters
from penstock.writers.requests.progress import Progress
from penstock.writers.requests.results import DELIVERED, DeadLetter, Dropped, Retry


@in_virtual_time
async def test_the_observer_gets_entries_in_the_order_of_their_acknowledgment() -> None:
    """The first request takes longest; of the second, one entry is sent again."""
    service = ScriptedService(
        [DELIVERED, Dropped("old"), DeadLetter("400", "Bad.")],
        [DELIVERED, Retry("503"), DELIVERED],
        latency_s=lambda number: 5.0 if number == 0 else LATENCY_S,
    )
    observed = Observed()
    writer = sender(service, observer=observed)
    await writer.write(entries(6))
    await writer.flush()
    assert observed.done == [
        (3, DELIVERED),
        (5, DELIVERED),
        (4, DELIVERED),
        (0, DELIVERED),
        (1, Dropped("old")),
        (2, DeadLetter("400", "Bad.")),
    ]


@in_virtual_time
async def test_what_a_crash_would_repeat_is_bounded_while_one_request_gets_no_response() -> None:
    """Without a bound, all others would be done behind it, and none of them recorded."""
    service = ScriptedService(NEVER)
    writer = sender(service, in_flight_requests_max=2, buffered_entries_max=10, request_timeout_s=60.0)
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(writer.write(entries(100)), timeout=30)
    assert writer.acknowledged_up_to is None
    assert max(place for request in service.positions for place in request) == 10 + 2 * 3 - 1
    await writer.abort()


@in_virtual_time
async def test_progress_is_the_prefix_of_what_is_done() -> None:
    service = ScriptedService(latency_s=lambda number: [3.0, 1.0, 5.0, 1.0][number])
    writer = sender(service, in_flight_requests_max=3)
    assert writer.acknowledged_up_to is None
    await writer.write(entries(9))
    for second, done_up_to in ((0.5, None), (2, None), (3.5, 5), (5.5, 8)):
        await asyncio.sleep(second - asyncio.get_running_loop().time())
        assert writer.acknowledged_up_to == done_up_to
    await writer.write([entry(20), entry(30)])
    await writer.flush()
    assert writer.acknowledged_up_to == 30


@in_virtual_time
async def test_progress_does_not_pass_what_the_observer_did_not_take() -> None:
    def refuse(done: object) -> None:
        raise OSError("disk full")

    service = ScriptedService(DELIVERED, NEVER, NEVER)
    writer = sender(service, observer=refuse)
    await writer.write(entries(3))
    with pytest.raises(PenstockError, match="OSError: disk full"):
        await writer.flush()
    assert writer.acknowledged_up_to is None
    with pytest.raises(PenstockError, match="OSError: disk full"):
        await writer.write(entries(3, start=3))
    await writer.abort()
    assert len(service.requests) == 1


@given(st.lists(st.integers(1, 5), max_size=30), st.randoms(use_true_random=False))
def test_every_position_of_the_prefix_is_done_and_the_next_one_is_not(
    gaps: list[int], random: object
) -> None:
    positions = [sum(gaps[: number + 1]) for number in range(len(gaps))]
    progress = Progress()
    progress.add(positions[:10])
    progress.add(positions[10:])
    done: set[int] = set()
    order = list(positions)
    random.shuffle(order)  # type: ignore[attr-defined]
    for position in order:
        progress.finish([position])
        done.add(position)
        prefix = []
        for one in positions:
            if one not in done:
                break
            prefix.append(one)
        assert progress.done_up_to == (prefix[-1] if prefix else None)
    assert not progress._open


def test_counters_tell_what_happened() -> None:
    service = ScriptedService(
        [DELIVERED, Retry("503"), Retry("429", is_throttled=True)],
        [Dropped(), DeadLetter("400", "Bad.")],
        NEVER,
    )

    async def main() -> Counters:
        writer = sender(service, in_flight_requests_max=1, request_timeout_s=1.0, draw=lambda: 0.0)
        await writer.write(entries(3, size_bytes=10))
        await writer.flush()
        await asyncio.sleep(1)  # throttling makes a pause between requests
        await writer.write(entries(1, start=3, size_bytes=5))
        await writer.flush()
        return writer.counters

    counters = run_virtually(main())
    assert counters.waited_s == pytest.approx(1 + 3 * LATENCY_S, rel=0.01)
    assert 0 < counters.in_flight_max < 3, "it has been throttled"
    counters.waited_s = counters.in_flight_max = 0
    assert counters == Counters(
        sent=7,
        delivered=2,
        retried=3,
        throttled=1,
        dropped=1,
        dead_letters=1,
        bytes=60,
        requests=4,
        throttled_requests=1,
        timed_out_requests=1,
    )
