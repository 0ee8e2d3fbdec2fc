"""What the benchmarks make of their samples."""

from __future__ import annotations

import time

import pytest
from benchmarks.measure import interleaved, medians, peak_memory_bytes, ratio


def test_cases_run_in_turn_and_warm_up_rounds_are_not_kept() -> None:
    order: list[str] = []

    def case(name: str) -> float:
        order.append(name)
        return float(len(order))

    samples = interleaved({"a": lambda: case("a"), "b": lambda: case("b")}, 2, warm_up=1)
    assert order == ["a", "b"] * 3
    assert samples == {"a": [3, 5], "b": [4, 6]}


def test_a_case_that_returns_nothing_is_timed() -> None:
    samples = interleaved({"sleep": lambda: time.sleep(0.02)}, 1)
    assert 0.02 <= samples["sleep"][0] < 1


def test_a_ratio_is_that_of_the_rounds_so_that_a_slow_machine_does_not_count() -> None:
    samples = {"ours": [1.0, 10.0, 2.0], "peer": [2.0, 20.0, 4.0]}
    assert ratio(samples, "peer", "ours") == 2
    assert medians(samples) == {"ours": 2, "peer": 4}


@pytest.mark.parametrize("samples", [{"ours": [1.0]}, {"ours": [1.0], "peer": []}])
def test_there_is_no_ratio_to_a_peer_that_did_not_run(samples: dict[str, list[float]]) -> None:
    assert ratio(samples, "ours", "peer") is None


def _take(count: int) -> None:
    assert len(b"x" * count) == count


def test_peak_memory_is_what_a_function_held_for_a_moment() -> None:
    idle = peak_memory_bytes(_take, 1)
    assert 180e6 < peak_memory_bytes(_take, 200_000_000) - idle < 250e6
