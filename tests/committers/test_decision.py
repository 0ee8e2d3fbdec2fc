"""The table of what happens to a batch: total, consistent, and as `docs/protocol.md` shows it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.committers.contract import AbortedBy, Batch, ManifestRecord, ManifestState, StreamKey, Token
from penstock.committers.protocol.decision import (
    COUPLED,
    DECOUPLED,
    REFUSALS,
    Action,
    RecordStatus,
    TokenPosition,
    decide,
    is_in_table,
    record_status,
    token_position,
)

PROTOCOL = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
BATCH = Batch(StreamKey("q", "/lake/t"), 7, "ab" * 32)
ENDS = [
    (ManifestState.PREPARED, None),
    (ManifestState.COMMITTED, None),
    *((ManifestState.ABORTED, by) for by in AbortedBy),
]

batches = st.builds(
    lambda batch_id, digest: replace(BATCH, batch_id=batch_id, digest=digest),
    st.integers(0, 9),
    st.sampled_from(["ab" * 32, "cd" * 32]),
)
tokens = st.none() | st.builds(Token, st.integers(0, 9), st.sampled_from(["ab" * 32, "abab", "cd" * 32]))
ends = st.none() | st.sampled_from(ENDS)


def record_of(
    batch: Batch, end: tuple[ManifestState, AbortedBy | None] | None, digest: str
) -> ManifestRecord | None:
    if end is None:
        return None
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    state, by = end
    return ManifestRecord(
        replace(batch, digest=digest), state, "delta", 1, 1, 1, 1, "run", now, reason="", aborted_by=by
    )


@given(batches, ends, st.sampled_from(["ab" * 32, "cd" * 32]), tokens, st.booleans())
def test_every_batch_has_an_action(
    batch: Batch,
    end: tuple[ManifestState, AbortedBy | None] | None,
    digest: str,
    token: Token | None,
    is_decoupled: bool,
) -> None:
    record, position = record_of(batch, end, digest), token_position(token, batch)
    action = decide(record, position, batch, is_decoupled=is_decoupled)
    assert action is not Action.READ_TOKEN, "the token was read"
    before = decide(record, TokenPosition.NOT_READ, batch, is_decoupled=is_decoupled)
    assert before in (Action.READ_TOKEN, action), "the token changes what the store has decided"


@pytest.mark.parametrize("table", [COUPLED, DECOUPLED], ids=["coupled", "decoupled"])
def test_the_table_is_complete(table: dict[RecordStatus, tuple[Action, ...]]) -> None:
    assert set(table) == set(RecordStatus)
    assert {len(actions) for actions in table.values()} == {len(TokenPosition)}


@pytest.mark.parametrize("is_decoupled", [False, True])
def test_no_row_is_lost_or_doubled_by_a_decision(is_decoupled: bool) -> None:
    """Written is only what neither the table nor another record has; skipped only what is kept somewhere, or
    was given up by an operator.
    """
    writes = {Action.WRITE, Action.SUPERSEDE, Action.COMMIT}
    for end, digest, position in itertools.product([None, *ENDS], ("same", "other"), TokenPosition):
        record = record_of(BATCH, end, BATCH.digest if digest == "same" else "cd" * 32)
        action = decide(record, position, BATCH, is_decoupled=is_decoupled)
        what = record_status(record, BATCH)
        if action in writes:
            assert position is TokenPosition.BEHIND, (what, position)
            assert end is None or end[0] is not ManifestState.COMMITTED
        if action is Action.SKIP and position is TokenPosition.BEHIND:
            kept = {RecordStatus.COMMITTED, RecordStatus.SKIPPED} | (
                {RecordStatus.PREPARED} if is_decoupled else set()
            )
            assert what in kept, (what, position)
        if what is RecordStatus.PREPARED_OTHER and action is Action.WRITE:
            pytest.fail("a prepared batch of other offsets stays pending behind the one that is written")
        if position is TokenPosition.OTHER and action not in REFUSALS:
            assert what in (RecordStatus.COMMITTED, RecordStatus.SKIPPED, RecordStatus.PREPARED), (
                what,
                position,
            )


def test_the_table_has_a_batch_that_its_token_names_or_has_passed() -> None:
    assert is_in_table(Token(7, "abab"), BATCH)
    assert is_in_table(Token(8, "cd"), BATCH)
    assert not is_in_table(Token(7, "cd"), BATCH)
    assert not is_in_table(Token(6, "abab"), BATCH)
    assert not is_in_table(None, BATCH)


def as_markdown() -> str:
    """The table, as the documentation shows it; where decoupled queries differ, after a slash."""
    positions = [position for position in TokenPosition if position is not TokenPosition.NOT_READ]
    lines = [
        "| the store has | " + " | ".join(f"token: {position.value}" for position in positions) + " |",
        "|---" * (len(positions) + 1) + "|",
    ]
    for what in RecordStatus:
        cells = []
        for index in range(1, len(TokenPosition)):
            coupled, decoupled = COUPLED[what][index].value, DECOUPLED[what][index].value
            cells.append(coupled if coupled == decoupled else f"{coupled} / {decoupled}")
        lines.append(f"| {what.value} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def test_the_documentation_shows_the_table() -> None:
    assert as_markdown() in PROTOCOL.read_text(), f"put this table into docs/protocol.md:\n{as_markdown()}"
