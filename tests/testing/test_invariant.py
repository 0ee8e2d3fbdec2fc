"""The invariant: each thing that can be wrong is found, and named in a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.testing import Observation, find_problems

SOUND = Observation(
    rows=3,
    lost=0,
    doubled=0,
    added={"a.parquet": 1, "b.parquet": 1},
    missing=[],
    orphans=7,
    tokens=[("q0", 0, 1), ("q1", 0, 2), ("q0", 1, 3), ("q1", 5, 4)],
    pending=[],
)

BROKEN = {
    "1 row of the source lost: not in the table": replace(SOUND, lost=1),
    "1,200 rows doubled: in the table more often than in the source": replace(SOUND, doubled=1200),
    "2 data files named more than once by the table, first a.parquet (3 times)": replace(
        SOUND, added={"b.parquet": 2, "a.parquet": 3, "c.parquet": 1}
    ),
    "1 data file named by the table but missing from storage, so that it cannot be read, first b.parquet": (
        replace(SOUND, missing=["b.parquet"])
    ),
    "the token of query q0 does not ascend: batch 1 follows batch 2 in version 9 of the table": replace(
        SOUND, tokens=[("q0", 2, 7), ("q1", 1, 8), ("q0", 1, 9)]
    ),
    "the token of query q0 does not ascend: batch 2 follows batch 2 in version 8 of the table": replace(
        SOUND, tokens=[("q0", 2, 7), ("q0", 2, 8)]
    ),
    "1 batch still PREPARED in the store after recovery, first batch 4 of query q0": replace(
        SOUND, pending=["batch 4 of query q0"]
    ),
}


def test_a_sound_table_has_no_problems() -> None:
    """Orphans and interleaved queries are none."""
    assert find_problems(SOUND) == []


@pytest.mark.parametrize("sentence", BROKEN)
def test_each_problem_is_found_and_no_other(sentence: str) -> None:
    assert find_problems(BROKEN[sentence]) == BROKEN[sentence].problems == [sentence]


def test_all_problems_are_reported_at_once() -> None:
    both = replace(SOUND, lost=1, pending=["batch 4 of query q0"])
    assert str(both).splitlines() == [
        "3 rows: 1 lost, 0 doubled; 2 data files: 0 missing, 7 orphaned; 4 tokens",
        "- 1 row of the source lost: not in the table",
        "- 1 batch still PREPARED in the store after recovery, first batch 4 of query q0",
    ]
